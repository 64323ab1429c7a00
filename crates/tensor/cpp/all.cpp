// All files in one: libtorch's headers take more time to compile than the files.

#include "aten.cpp"
#include "script.cpp"
#include "shim.cpp"
#include "transfer.cpp"
