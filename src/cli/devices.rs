//! `spmd-run devices`: the global device view.

use clap::Args;
use serde_json::json;
use spmd_run::runtime::Runtime;

use super::job::JobOptions;
use super::report::{id_range, links_text, print, table};
use super::{Failure, Format};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    job: JobOptions,

    /// Form of the results on standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn main(options: Options) -> Result<u8, Failure> {
    let job = &options.job;
    let nothing_else = |_| Ok(());
    job.run(
        &[],
        || Ok(None),
        nothing_else,
        |world, data_plane| {
            let runtime = job.open(world, data_plane, None)?;
            if runtime.world().process_index() == 0 {
                print(&match options.format {
                    Format::Text => text(&runtime),
                    Format::Json => format!("{}\n", as_json(&runtime)),
                })?;
            }
            Ok(0)
        },
    )
}

fn text(runtime: &Runtime) -> String {
    let topology = runtime.topology();
    let rows: Vec<Vec<String>> = topology
        .processes()
        .iter()
        .zip(topology.slices())
        .enumerate()
        .map(|(index, (process, slice))| {
            vec![
                index.to_string(),
                slice.to_string(),
                process.host.clone(),
                process.pid.to_string(),
                process.devices.len().to_string(),
                id_range(&process.devices),
                process.devices.first().map(|device| device.kind.clone()).unwrap_or_default(),
            ]
        })
        .collect();
    let columns = ["#process", "#slice", "host", "#pid", "#local_device_count", "devices", "kind"];
    let Some(process) = topology.processes().first() else { return String::new() };
    let (major, minor) = process.pjrt_api_version;
    let links = runtime.links().map(|links| format!("links          {}\n", links_text(&links))).unwrap_or_default();
    format!(
        "device_count   {}\nprocess_count  {}\nslice_count    {}\nplatform       {}\nplugin         PJRT C API {major}.{minor}, {}\n{links}\n{}",
        topology.device_count(),
        topology.processes().len(),
        topology.slice_count(),
        process.platform,
        process.platform_version.replace('\n', " "),
        table(&columns, &rows)
    )
}

fn as_json(runtime: &Runtime) -> serde_json::Value {
    let topology = runtime.topology();
    let first = topology.processes().first();
    let processes: Vec<_> = topology
        .processes()
        .iter()
        .enumerate()
        .map(|(index, process)| {
            json!({
                "process_index": index,
                "host": process.host,
                "pid": process.pid,
                "local_device_count": process.devices.len(),
                "devices": process.devices,
            })
        })
        .collect();
    json!({
        "device_count": topology.device_count(),
        "process_count": topology.processes().len(),
        "slice_count": topology.slice_count(),
        "platform": first.map(|process| &process.platform),
        "platform_version": first.map(|process| &process.platform_version),
        "pjrt_api_version": first.map(|process| process.pjrt_api_version),
        "plugin": runtime.client().plugin().path(),
        "links": runtime.links(),
        "processes": processes,
    })
}
