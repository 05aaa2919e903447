//! Meshes and shardings as StableHLO programs for the partitioner Shardy write them.

use super::device_order::joined;
use super::{Mesh, NamedSharding, SpecError};

impl Mesh {
    /// The attribute of an `sdy.mesh` operation: `<["data"=2, "model"=4]>`, with the program's partitions where they
    /// are in another order than their numbers.
    pub fn to_shardy(&self) -> String {
        let axes: Vec<String> = self.axes().iter().map(|(name, size)| format!("{}={size}", quoted(name))).collect();
        let axes = axes.join(", ");
        let partitions = self.partitions();
        if partitions.iter().copied().eq(0..self.device_count() as u32) {
            format!("<[{axes}]>")
        } else {
            format!("<[{axes}], device_ids=[{}]>", joined(&partitions, ", "))
        }
    }
}

impl NamedSharding {
    /// The attribute `sdy.sharding` of an array of `rank` dimensions, where the program's mesh has the name `mesh`:
    /// `#sdy.sharding<@mesh, [{"data"}, {}]>`.
    ///
    /// ```
    /// use spmd_run::mesh::Mesh;
    ///
    /// let mesh = Mesh::new(&[("data", 2), ("model", 2)])?;
    /// let (rows, columns) = (mesh.sharding(("data", None))?, mesh.sharding((None, "model"))?);
    /// let program = format!(
    ///     "module @product attributes {{mhlo.num_partitions = 4 : i32}} {{
    ///        sdy.mesh @mesh = {}
    ///        func.func @main(%x: tensor<8x4xf32> {{sdy.sharding = {}}}, %w: tensor<4x6xf32> {{sdy.sharding = {}}}) -> tensor<8x6xf32> {{
    ///          %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    ///          return %y : tensor<8x6xf32>
    ///        }}
    ///      }}",
    ///     mesh.to_shardy(), rows.to_shardy("mesh", 2)?, columns.to_shardy("mesh", 2)?,
    /// );
    /// assert!(program.contains("sdy.mesh @mesh = <[\"data\"=2, \"model\"=2]>"));
    /// assert!(program.contains("%w: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {\"model\"}]>}"));
    /// # Ok::<(), spmd_run::mesh::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// The spec has more entries than the array has dimensions.
    pub fn to_shardy(&self, mesh: &str, rank: usize) -> Result<String, SpecError> {
        self.check_rank(rank, || format!("of {rank} dimensions"))?;
        let cut = |dim: usize| {
            let axes = self.spec().cuts().get(dim).map(|cut| cut.0.as_slice()).unwrap_or_default();
            format!("{{{}}}", axes.iter().map(|axis| quoted(axis)).collect::<Vec<_>>().join(", "))
        };
        let cuts: Vec<String> = (0..rank).map(cut).collect();
        Ok(format!("#sdy.sharding<@{mesh}, [{}]>", cuts.join(", ")))
    }
}

/// As MLIR writes a string.
fn quoted(name: &str) -> String {
    let escaped = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        _ => format!("\\{byte:02X}"),
    };
    format!("\"{}\"", name.bytes().map(escaped).collect::<String>())
}
