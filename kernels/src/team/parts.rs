//! Mutable arrays in pieces.

/// A mutable array of which tasks write parts that do not overlap.
pub(crate) struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    _borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: a `Parts` is a `&mut [T]` that is handed out in pieces; sending pieces needs `T: Send`.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), _borrow: std::marker::PhantomData }
    }

    /// `n` elements from `at`.
    ///
    /// # Safety
    /// No other live piece overlaps it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, at: usize, n: usize) -> &mut [T] {
        assert!(at <= self.len && n <= self.len - at, "{n} elements at {at} of {}", self.len);
        // SAFETY: in bounds; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), n) }
    }

    /// A pointer to element `at`, for strided writes.
    ///
    /// # Safety
    /// As [`Parts::slice`], for every element that is written.
    pub(crate) unsafe fn pointer(&self, at: usize) -> *mut T {
        assert!(at <= self.len);
        // SAFETY: in bounds or one past.
        unsafe { self.data.add(at) }
    }
}
