//! Compile options.

use buffa::Message;

use super::value::Value;
use crate::proto;
use crate::proto::compile_options_proto::EnvOptionOverridesEntry;
use crate::proto::option_override_proto::Value as OptionValue;

/// The device ids of each computation of a program, as `[replica][partition]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAssignment(pub Vec<Vec<i64>>);

/// The options of [`Client::compile`](super::Client::compile) that a runner of programs needs; what is not here keeps
/// XLA's default.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// The number of replicas: copies of the program on other data.
    pub num_replicas: i64,
    /// The number of partitions: devices that share the work of one replica.
    pub num_partitions: i64,
    /// The devices to run on; `None` leaves the choice to the plugin.
    pub device_assignment: Option<DeviceAssignment>,
    /// Whether one program is partitioned for all devices. Must be set when there is more than one partition.
    pub use_spmd_partitioning: bool,
    /// Whether Shardy partitions instead of GSPMD. XLA aborts when this is set for HLO that was not lowered for Shardy.
    pub use_shardy_partitioner: bool,
    /// For each parameter, or once for all: whether the partitioner may choose a sharding where none is given.
    pub allow_spmd_sharding_propagation_to_parameters: Vec<bool>,
    /// For each result, or once for all: whether the partitioner may choose a sharding where none is given.
    pub allow_spmd_sharding_propagation_to_output: Vec<bool>,
    /// The layouts of the arguments; empty means the default ones.
    pub argument_layouts: Vec<proto::ShapeProto>,
    /// The layout of the result; `None` means the default one.
    pub result_layout: Option<proto::ShapeProto>,
    /// Whether the program takes its arguments as one tuple, whose elements are given one by one.
    pub parameter_is_tupled_arguments: bool,
    /// XLA flags for this compilation, by name without dashes.
    pub env_overrides: Vec<(String, Value)>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            num_replicas: 1,
            num_partitions: 1,
            device_assignment: None,
            use_spmd_partitioning: false,
            use_shardy_partitioner: false,
            allow_spmd_sharding_propagation_to_parameters: Vec::new(),
            allow_spmd_sharding_propagation_to_output: Vec::new(),
            argument_layouts: Vec::new(),
            result_layout: None,
            parameter_is_tupled_arguments: false,
            env_overrides: Vec::new(),
        }
    }
}

impl CompileOptions {
    /// The serialized `CompileOptionsProto`.
    pub fn encode(&self) -> Vec<u8> {
        let build_options = proto::ExecutableBuildOptionsProto {
            device_ordinal: -1,
            result_layout: self.result_layout.clone().into(),
            num_replicas: self.num_replicas,
            num_partitions: self.num_partitions,
            use_spmd_partitioning: self.use_spmd_partitioning,
            use_shardy_partitioner: self.use_shardy_partitioner,
            device_assignment: self.device_assignment.as_ref().map(DeviceAssignment::to_proto).into(),
            allow_spmd_sharding_propagation_to_parameters: self.allow_spmd_sharding_propagation_to_parameters.clone(),
            allow_spmd_sharding_propagation_to_output: self.allow_spmd_sharding_propagation_to_output.clone(),
            ..Default::default()
        };
        proto::CompileOptionsProto {
            argument_layouts: self.argument_layouts.clone(),
            parameter_is_tupled_arguments: self.parameter_is_tupled_arguments,
            executable_build_options: build_options.into(),
            env_option_overrides: self.env_overrides.iter().map(|(key, value)| env_override(key, value)).collect(),
            ..Default::default()
        }
        .encode_to_vec()
    }
}

impl DeviceAssignment {
    fn to_proto(&self) -> proto::DeviceAssignmentProto {
        let partitions = self.0.first().map_or(0, Vec::len);
        let computation_devices = (0..partitions)
            .map(|partition| proto::device_assignment_proto::ComputationDevice {
                replica_device_ids: self.0.iter().filter_map(|replica| replica.get(partition).copied()).collect(),
                ..Default::default()
            })
            .collect();
        proto::DeviceAssignmentProto {
            replica_count: self.0.len().try_into().unwrap_or(i32::MAX),
            computation_count: partitions.try_into().unwrap_or(i32::MAX),
            computation_devices,
            ..Default::default()
        }
    }
}

fn env_override(key: &str, value: &Value) -> EnvOptionOverridesEntry {
    let value = match value {
        Value::String(text) => OptionValue::StringField(text.clone()),
        Value::Int(int) => OptionValue::IntField(*int),
        Value::Float(float) => OptionValue::DoubleField(*float),
        Value::Bool(boolean) => OptionValue::BoolField(*boolean),
        // Flags that take lists are written as text.
        Value::IntList(list) => OptionValue::StringField(list.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
    };
    let value = proto::OptionOverrideProto { value: Some(value), ..Default::default() };
    EnvOptionOverridesEntry { key: key.to_owned(), value: value.into(), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_assignment_is_transposed() {
        let options = CompileOptions {
            num_replicas: 2,
            num_partitions: 3,
            device_assignment: Some(DeviceAssignment(vec![vec![0, 1, 2], vec![3, 4, 5]])),
            ..Default::default()
        };
        let encoded = proto::CompileOptionsProto::decode_from_slice(&options.encode()).unwrap();
        let build_options = encoded.executable_build_options.into_option().unwrap();
        let assignment = build_options.device_assignment.into_option().unwrap();
        assert_eq!((assignment.replica_count, assignment.computation_count), (2, 3));
        assert_eq!(assignment.computation_devices[2].replica_device_ids, [2, 5]);
    }

    #[test]
    fn defaults_say_nothing_of_devices() {
        let encoded = proto::CompileOptionsProto::decode_from_slice(&CompileOptions::default().encode()).unwrap();
        let build_options = encoded.executable_build_options.into_option().unwrap();
        assert_eq!((build_options.num_replicas, build_options.num_partitions), (1, 1));
        assert!(build_options.device_assignment.is_unset() && build_options.result_layout.is_unset());
    }
}
