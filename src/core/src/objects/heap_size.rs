//! The memory that a decoded object occupies. The size of its JSON is no bound: an empty argument has three bytes in
//! JSON, and twenty-four as a `String`.

use std::collections::BTreeMap;

/// A value that owns memory.
pub trait HeapSize {
    /// Returns the memory that the value owns, in bytes, without the value itself and without the allocator's overhead.
    fn heap_size(&self) -> usize;
}

/// Implements [`HeapSize`] as the sum of these fields.
#[macro_export]
macro_rules! heap_size_of_fields {
    ($($type:ty { $($field:ident),+ })+) => {
        $(impl $crate::objects::heap_size::HeapSize for $type {
            fn heap_size(&self) -> usize {
                0 $(+ $crate::objects::heap_size::HeapSize::heap_size(&self.$field))+
            }
        })+
    };
}
pub use crate::heap_size_of_fields;

impl HeapSize for String {
    fn heap_size(&self) -> usize {
        self.capacity()
    }
}

impl<T: HeapSize> HeapSize for Option<T> {
    fn heap_size(&self) -> usize {
        self.as_ref().map_or(0, HeapSize::heap_size)
    }
}

impl<T: HeapSize> HeapSize for Vec<T> {
    fn heap_size(&self) -> usize {
        self.capacity() * size_of::<T>() + self.iter().map(HeapSize::heap_size).sum::<usize>()
    }
}

impl HeapSize for BTreeMap<String, String> {
    fn heap_size(&self) -> usize {
        let entries = self.iter().map(|(name, value)| name.heap_size() + value.heap_size());
        self.len() * size_of::<(String, String)>() + entries.sum::<usize>()
    }
}

impl<A: HeapSize, B: HeapSize> HeapSize for (A, B) {
    fn heap_size(&self) -> usize {
        self.0.heap_size() + self.1.heap_size()
    }
}
