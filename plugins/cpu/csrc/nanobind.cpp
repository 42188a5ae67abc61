// nanobind's own sources, found beside its headers when the extension is built.
#include "nb_combined.cpp"
