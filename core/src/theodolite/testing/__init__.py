"""The conformance kit: what every family has to hold, as pytest classes for plugin authors.

::

    from theodolite.testing import FamilyTests

    class TestAcme(FamilyTests):
        plugin = acme_theodolite.plugin      # the module (or object) of hook implementations
        name = "acme"                        # its entry point
        golden = Path(__file__).parent / "golden" / "acme.json"

A golden file is a recipe of a tiny checkpoint (its JSON files, its tokenizer, its tensors' names and shapes) with the
reference implementation's answers; `theodolite.testing.tiny` draws the weights from the names, so that the reference
and the test write the same checkpoint. Without answers the other tests still run.
"""

from theodolite.testing.suite import FamilyTests

__all__ = ["FamilyTests"]
