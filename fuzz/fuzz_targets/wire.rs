//! The rendezvous' frames and messages: no bytes may make either side panic, hang or take much more memory than there are
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spmd_run_fuzz::within_bounds;

fuzz_target!(|bytes: &[u8]| within_bounds(bytes.len(), || spmd_run::rendezvous::take_untrusted(bytes)));
