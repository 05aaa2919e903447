//! hlo
