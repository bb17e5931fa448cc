#pragma once
/// @file
/// IntrusiveList: a doubly linked list that owns no element. ListNode: an element's links; its destruction unlinks it.

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::async {

/// An element's links. Destroying an element takes it out of its list.
class ListNode {
 public:
  ListNode() noexcept = default;
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;
  ~ListNode() { unlink(); }

  bool linked() const noexcept { return next_ != this; }

  void unlink() noexcept {
    previous_->next_ = next_;
    next_->previous_ = previous_;
    next_ = previous_ = this;
  }

 private:
  template <class>
  friend class IntrusiveList;

  ListNode* next_ = this;
  ListNode* previous_ = this;
};

/// Elements of T, which derives from ListNode; the list owns none of them. No operation allocates.
/// Lifetime: elements that are still linked when the list is destroyed are left unlinked.
template <class T>
class IntrusiveList {
 public:
  IntrusiveList() noexcept = default;
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;
  ~IntrusiveList() {
    while (pop_front() != nullptr) {
    }
  }

  bool empty() const noexcept { return !sentinel_.linked(); }

  /// Appends an element, taking it out of the list it was in.
  void push_back(T& element) noexcept {
    ListNode& node = element;
    node.unlink();
    node.previous_ = sentinel_.previous_;
    node.next_ = &sentinel_;
    sentinel_.previous_->next_ = &node;
    sentinel_.previous_ = &node;
  }

  /// The first element, or nullptr.
  T* front() const noexcept { return empty() ? nullptr : static_cast<T*>(sentinel_.next_); }

  /// Takes the first element out; nullptr if there is none.
  T* pop_front() noexcept {
    T* element = front();
    if (element != nullptr) {
      static_cast<ListNode&>(*element).unlink();
    }
    return element;
  }

  /// Moves all elements of `other` to the end of this list, in constant time.
  void splice_back(IntrusiveList& other) noexcept {
    if (other.empty()) {
      return;
    }
    ListNode* first = other.sentinel_.next_;
    ListNode* last = other.sentinel_.previous_;
    other.sentinel_.next_ = other.sentinel_.previous_ = &other.sentinel_;
    first->previous_ = sentinel_.previous_;
    last->next_ = &sentinel_;
    sentinel_.previous_->next_ = first;
    sentinel_.previous_ = last;
  }

 private:
  ListNode sentinel_;
};

}  // namespace DTRAIN_NAMESPACE::async
