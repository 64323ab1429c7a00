// No exception leaves a C++ file: it becomes a message, which whoever called frees.

#pragma once

#include <c10/util/Exception.h>

#include <cstring>
#include <exception>

template <typename Work>
char* guarded(Work work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const c10::Error& e) {
    return strdup(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("an exception of unknown type");
  }
}
