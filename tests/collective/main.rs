//! Collectives between communicators in one process, connected by real TCP connections over loopback.

mod faults;
mod generate;
mod harness;
mod independent;
mod properties;
mod reference;
