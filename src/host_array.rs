//! host arrays
