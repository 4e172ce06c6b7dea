// Fields that few objects of a kind use: nothing but a null pointer until one is written.
#pragma once

#include <memory>

namespace rrpc {

// Reads give T's defaults until the first write().
template <typename T>
class Seldom {
 public:
  const T* operator->() const { return fields_ == nullptr ? &defaults_ : fields_.get(); }
  T& write() {
    if (fields_ == nullptr) fields_ = std::make_unique<T>();
    return *fields_;
  }
  // Null: there is nothing but defaults.
  T* written() { return fields_.get(); }
  const T* written() const { return fields_.get(); }

 private:
  static inline const T& defaults_ = *new T();  // never destroyed: threads may read it while the process ends
  std::unique_ptr<T> fields_;
};

}  // namespace rrpc
