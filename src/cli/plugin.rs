//! `spmd-run plugin`: known PJRT plugins and where they are.
