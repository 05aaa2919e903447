//! `spmd-run`: see the library's documentation for what it does, and `spmd-run --help` for how to call it.

mod cli;

fn main() {
    spmd_run::runtime::exit(cli::main())
}
