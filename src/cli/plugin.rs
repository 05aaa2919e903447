//! `spmd-run plugin`: known PJRT plugins and where they are.

use clap::{Args, Subcommand};

use super::report::{print, table};
use super::{Failure, Format};
use spmd_run::plugins;

#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List known plugins and where they are
    List {
        /// Form of the list
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
    /// Download a plugin's pinned wheel with pip, check it and unpack it into the cache
    Install {
        /// A name from `plugin list`
        name: String,
    },
}

pub fn main(options: Options) -> Result<u8, Failure> {
    match options.action {
        Action::List { format } => print(&list(format))?,
        Action::Install { name } => install(&name)?,
    }
    Ok(0)
}

fn list(format: Format) -> String {
    let listings = plugins::list();
    match format {
        Format::Text => {
            let rows: Vec<Vec<String>> = listings
                .iter()
                .map(|listing| {
                    let place = match &listing.found {
                        Some(found) => format!("{} ({})", found.path.display(), found.place),
                        None => format!("not installed: {}", listing.known.install_command()),
                    };
                    vec![listing.known.name.to_owned(), listing.known.about.to_owned(), place]
                })
                .collect();
            table(&["name", "about", "where"], &rows)
        }
        Format::Json => {
            let rows: Vec<_> = listings
                .iter()
                .map(|listing| {
                    serde_json::json!({
                        "name": listing.known.name,
                        "about": listing.known.about,
                        "path": listing.found.as_ref().map(|found| &found.path),
                        "place": listing.found.as_ref().map(|found| found.place),
                    })
                })
                .collect();
            format!("{}\n", serde_json::Value::from(rows))
        }
    }
}

fn install(name: &str) -> Result<(), Failure> {
    let installed = plugins::install(name).map_err(Failure::program)?;
    let how = if installed.fresh { "installed" } else { "already there" };
    print(&format!("{} ({how})\n", installed.path.display()))
}
