//! The global arguments of a run: from files, or filled.

use std::collections::BTreeMap;

use spmd_run::host_array::npz::{self, NpyArray};
use spmd_run::host_array::{Fill, HostArray};
use spmd_run::launch::shipped;
use spmd_run::runtime::{Fact, GlobalArray};

use super::{Failure, Options};

impl Options {
    /// The global arguments, in the program's order, and for each the facts on which processes must agree.
    pub(super) fn inputs(
        &self,
        parameters: &[GlobalArray],
        replicas: usize,
    ) -> Result<(Vec<HostArray>, Vec<Fact>), Failure> {
        let mut files = self.read_files(parameters.len())?;
        let any_file = self.input.is_some() || !self.args.is_empty();
        let fill = self.fill.or((!any_file).then_some(Fill::Random { seed: 0 }));
        let mut arrays = Vec::with_capacity(parameters.len());
        let mut facts = Vec::with_capacity(parameters.len());
        for (index, parameter) in parameters.iter().enumerate() {
            let (array, contents) = match (files.remove(&index), fill) {
                (Some(array), _) => {
                    let array = convert(array, parameter, replicas).map_err(Failure::program)?;
                    let hash = blake3::hash(array.data()).to_hex();
                    (array, format!("from a file, BLAKE3 {}", &hash[..16]))
                }
                (None, Some(fill)) => {
                    let dims = parameter.dims_usize();
                    let array = HostArray::filled(fill, index, parameter.dtype, &dims).map_err(Failure::program)?;
                    (array, format!("filled with {fill:?}"))
                }
                (None, None) => {
                    return Err(Failure::program(anyhow::anyhow!(
                        "the program takes {} arguments, and no file gives arg{index} ({}): add it, or use --fill",
                        parameters.len(),
                        parameter.shape_text()
                    )));
                }
            };
            let dims: Vec<String> = array.dims().iter().map(usize::to_string).collect();
            let shape = format!("{}[{}]", array.dtype().name(), dims.join(","));
            facts.push((format!("arg{index}"), format!("{shape} {contents}")));
            arrays.push(array);
        }
        Ok((arrays, facts))
    }

    /// What the files give, by the argument's number.
    fn read_files(&self, parameters: usize) -> Result<BTreeMap<usize, NpyArray>, Failure> {
        let mut files = BTreeMap::new();
        if let Some(path) = &self.input {
            for (name, array) in npz::read_npz(&shipped(path)).map_err(Failure::program)? {
                let index = name.strip_prefix("arg").and_then(|number| number.parse().ok());
                let index = index.filter(|&index: &usize| index < parameters).ok_or_else(|| {
                    Failure::program(anyhow::anyhow!(
                        "{}: '{name}' is not an argument of the program, which takes {}",
                        path.display(),
                        names(parameters)
                    ))
                })?;
                files.insert(index, array);
            }
        }
        for (index, path) in &self.args {
            if *index >= parameters {
                let path = path.display();
                return Err(Failure::usage(format!("--arg {index}={path}: the program takes {}", names(parameters))));
            }
            let array = npz::read_npy(&shipped(path)).map_err(Failure::program)?;
            if files.insert(*index, array).is_some() {
                return Err(Failure::usage(format!("--arg {index}={}: arg{index} is given twice", path.display())));
            }
        }
        Ok(files)
    }
}

fn names(parameters: usize) -> String {
    match parameters {
        0 => "no arguments".to_owned(),
        1 => "arg0".to_owned(),
        _ => format!("arg0 to arg{}", parameters - 1),
    }
}

/// Checks a file's array against the parameter, which it may give once for every replica.
fn convert(
    array: NpyArray,
    parameter: &GlobalArray,
    replicas: usize,
) -> Result<HostArray, spmd_run::host_array::FileError> {
    let dims = parameter.dims_usize();
    let stacked = [&[replicas], &dims[..]].concat();
    let dims = if replicas > 1 && array.dims() == stacked { stacked } else { dims };
    array.into_host_array(parameter.dtype, &dims)
}
