//! Every process joins the job, and process 0 tells what there is.
//!
//!     cargo build --examples && target/debug/spmd-run -n 4 -- target/debug/examples/hello

use std::process::ExitCode;

fn main() -> ExitCode {
    spmd_run::run(|runtime| {
        if runtime.process_index() == 0 {
            println!("processes: {}, devices: {}", runtime.process_count(), runtime.device_count());
            for process in runtime.topology().processes() {
                let ids: Vec<u32> = process.devices.iter().map(|device| device.id).collect();
                println!("{} {:?}", process.platform, ids);
            }
        }
        Ok(())
    })
}
