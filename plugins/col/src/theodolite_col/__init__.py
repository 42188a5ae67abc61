"""ColIdefics3 and ColQwen2.5: late-interaction retrievers of page images."""
