//! What this host has: accelerator chips, network interfaces, and the limits that jobs run into.

mod chips;
mod holders;
mod interfaces;
mod limits;

pub use chips::{Chip, Vendor, chips, tpu_chips};
pub use holders::{Holder, holders};
pub use interfaces::{Interface, address_for_peers, address_towards, best, interfaces};
pub use limits::Limits;
