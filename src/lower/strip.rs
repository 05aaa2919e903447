//! Takes off what described the program before it was partitioned.

use crate::proto::{FrontendAttributes, HloModuleProto};

/// Removes shardings, Shardy's attributes, the device assignment and the schedule.
///
/// Shardings that stay behind would have the program partitioned again. The schedule goes because the lowered program
/// is compiled from the start: row-major custom calls need copies that no old schedule knows of.
pub(super) fn strip(module: &mut HloModuleProto) {
    module.schedule = None.into();
    module.device_assignment = None.into();
    module.spmd_output_sharding = None.into();
    module.spmd_parameters_shardings.clear();
    module.use_auto_spmd_partitioning = false;
    if let Some(attributes) = module.frontend_attributes.as_option_mut() {
        without_shardy(attributes);
    }
    for instruction in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        instruction.sharding = None.into();
        if let Some(attributes) = instruction.frontend_attributes.as_option_mut() {
            without_shardy(attributes);
        }
    }
}

fn without_shardy(attributes: &mut FrontendAttributes) {
    attributes.map.retain(|entry| !entry.key.starts_with("xla.sdy."));
}
