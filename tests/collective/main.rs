//! Collectives between communicators in one process, connected by real TCP connections over loopback.

mod faults;
mod generate;
mod harness;
mod independent;
mod links;
mod network;
mod properties;
mod reference;
#[path = "../harness/relay.rs"]
mod relay;
