//! The attributes of instructions: `, name=value` after the operands.

use buffa::{EnumValue, Enumeration};

use super::Parser;
use super::attr::{Attr, AttrSet, COMMON};
use super::computation::Scope;
use super::cursor::fail;
use super::error::{Result, hint, hint_or};
use super::instruction::Draft;
use super::opcode::Opcode;
use super::window::unknown_field;
use crate::proto::hlo_instruction_details::OptionalCrossProgramPrefetchIndex;
use crate::proto::result_accuracy::{Specs, Tolerance};
use crate::proto::{
    CustomCallApiVersion, OutputOperandAliasing, ParameterReplication, ResultAccuracy, SourceTarget, TriState,
};

impl<'a> Parser<'a> {
    /// All attributes of an instruction; `outer` are allowed besides the opcode's own.
    pub(super) fn attributes(&mut self, scope: &Scope<'a>, outer: AttrSet, draft: &mut Draft<'a>) -> Result<()> {
        let opcode = draft.opcode;
        let allowed = opcode.allowed.union(COMMON).union(outer);
        while self.eat(b',') {
            let start = self.pos();
            let name = self.word("an attribute")?;
            self.expect(b'=', "after the attribute's name")?;
            let attr = match Attr::from_name(name) {
                Some(attr) if allowed.contains(attr) => attr,
                known => return Err(fail(start, not_allowed(opcode, name, known.is_some(), allowed))),
            };
            if !draft.seen.insert(attr) {
                return Err(fail(start, format!("the attribute '{name}' stands there twice")));
            }
            self.attribute(scope, attr, draft)?;
        }
        match opcode.required.without(draft.seen).names().next() {
            None => Ok(()),
            Some(missing) => Err(fail(draft.start, format!("{} needs the attribute '{missing}'", opcode.name))),
        }
    }

    fn attribute(&mut self, scope: &Scope<'a>, attr: Attr, draft: &mut Draft<'a>) -> Result<()> {
        let opcode = draft.opcode;
        let proto = &mut draft.proto;
        match attr {
            Attr::Algorithm if opcode.name == "rng-bit-generator" => {
                proto.details_mut().rng_algorithm = self.enumeration("random algorithm", "")?;
            }
            Attr::Algorithm => {
                proto.precision_config.get_or_insert_default().algorithm = self.enumeration("algorithm", "ALG_")?;
            }
            Attr::ApiVersion => {
                let start = self.pos();
                proto.details_mut().custom_call_api_version = self.enumeration("API version", "")?;
                if proto.details().custom_call_api_version == CustomCallApiVersion::API_VERSION_UNSPECIFIED {
                    return Err(fail(start, "the API version cannot be unspecified"));
                }
            }
            Attr::AsyncExecutionThread => proto.details_mut().async_execution_thread = self.execution_thread()?,
            Attr::BackendConfig => {
                let json = self.at(b'{');
                proto.details_mut().backend_config =
                    if json { self.braces()?.into() } else { self.bytes()?.into_owned() };
            }
            Attr::BatchGroupCount => proto.details_mut().batch_group_count = self.integer()?,
            Attr::BlockScalingConfig => proto.details_mut().block_scaling_config = self.block_scaling_config()?.into(),
            Attr::BranchComputations | Attr::CalledComputations => {
                for id in self.list(b'{', b'}', "computations", Parser::computation_reference)? {
                    draft.called.push((0, id));
                }
            }
            Attr::Body | Attr::Calls | Attr::Select | Attr::ToApply | Attr::TrueComputation => {
                draft.called.push((0, self.computation_reference()?));
            }
            Attr::Condition | Attr::FalseComputation | Attr::Scatter => {
                draft.called.push((1, self.computation_reference()?));
            }
            Attr::ChannelId => proto.channel_id = self.integer()?,
            Attr::CollapsedSliceDims => {
                proto.details_mut().gather_dimension_numbers.get_or_insert_default().collapsed_slice_dims =
                    self.integers()?;
            }
            Attr::ConstrainLayout => proto.details_mut().constrain_layout = self.boolean()?,
            Attr::ControlPredecessors => {
                let names = self.list(b'{', b'}', "control predecessors", |parser| {
                    let start = parser.pos();
                    let name = parser.name("an instruction")?;
                    scope.find(name).map(i64::from).ok_or_else(|| scope.unknown_instruction(start, name))
                })?;
                proto.control_predecessor_ids = names;
            }
            Attr::ConvolutionKind => {
                proto.details_mut().conv_kind = self.enumeration("kind of convolution", "CONVOLUTION_KIND_")?;
            }
            Attr::CrossProgramPrefetchIndex => {
                let index = OptionalCrossProgramPrefetchIndex::CrossProgramPrefetchIndex(self.integer_i32()?);
                proto.details_mut().optional_cross_program_prefetch_index = Some(index);
            }
            Attr::CustomCallHasSideEffect => proto.details_mut().custom_call_has_side_effect = self.boolean()?,
            Attr::CustomCallTarget => proto.details_mut().custom_call_target = self.string()?,
            Attr::Delta => proto.details_mut().delta = self.integer()?,
            Attr::DimLabels => {
                proto.details_mut().convolution_dimension_numbers = self.convolution_dimension_numbers()?.into()
            }
            Attr::Dimensions => {
                let start = self.pos();
                proto.dimensions = self.integers()?;
                if opcode.has_one_dimension() && proto.dimensions.len() != 1 {
                    return Err(fail(start, format!("{} has one dimension", opcode.name)));
                }
            }
            Attr::Direction => {
                proto.details_mut().comparison_direction =
                    self.choice("direction", &["EQ", "NE", "GE", "GT", "LE", "LT"])?;
            }
            Attr::Distribution => proto.details_mut().distribution = self.enumeration("distribution", "")?,
            Attr::Domain => self.domain(draft)?,
            Attr::DynamicSliceSizes => proto.details_mut().dynamic_slice_sizes = self.integers()?,
            Attr::Epsilon => proto.details_mut().epsilon = self.number()? as f32,
            Attr::ExponentBits => proto.details_mut().exponent_bits = self.integer_i32()?,
            Attr::FeatureGroupCount => proto.details_mut().feature_group_count = self.integer()?,
            Attr::FeatureIndex => proto.details_mut().feature_index = self.integer()?,
            Attr::FftLength => proto.details_mut().fft_length = self.integers()?,
            Attr::FftType => proto.details_mut().fft_type = self.enumeration("kind of Fourier transform", "")?,
            Attr::FrontendAttributes => proto.frontend_attributes = self.frontend_attributes()?.into(),
            Attr::HasDynamicRoot => proto.details_mut().has_dynamic_root = self.boolean()?,
            Attr::Index => proto.tuple_index = self.integer()?,
            Attr::IndexVectorDim if opcode.name == "gather" => {
                proto.details_mut().gather_dimension_numbers.get_or_insert_default().index_vector_dim =
                    self.integer()?;
            }
            Attr::IndexVectorDim => {
                proto.details_mut().scatter_dimension_numbers.get_or_insert_default().index_vector_dim =
                    self.integer()?;
            }
            Attr::IndicesAreSorted => proto.details_mut().indices_are_sorted = self.boolean()?,
            Attr::InfeedConfig => proto.details_mut().infeed_config = self.bytes()?.into_owned(),
            Attr::InferredDimension => {
                proto.dimensions = vec![self.integer()?];
                proto.dimensions.retain(|&dimension| dimension != -1);
            }
            Attr::InputBatchingDims => {
                proto.details_mut().scatter_dimension_numbers.get_or_insert_default().input_batching_dims =
                    self.integers()?;
            }
            Attr::InsertedWindowDims => {
                proto.details_mut().scatter_dimension_numbers.get_or_insert_default().inserted_window_dims =
                    self.integers()?;
            }
            Attr::IotaDimension => proto.dimensions = vec![self.integer()?],
            Attr::IsAssociative => {
                let associative = self.boolean()?;
                proto.details_mut().is_associative =
                    if associative { TriState::TRI_STATE_TRUE } else { TriState::TRI_STATE_FALSE }.into();
            }
            Attr::IsComposite => proto.details_mut().is_composite = self.boolean()?,
            Attr::IsHostTransfer => proto.details_mut().is_host_transfer = self.boolean()?,
            Attr::IsReverse => proto.details_mut().is_reverse = self.boolean()?,
            Attr::IsStable => proto.details_mut().is_stable = self.boolean()?,
            Attr::K => proto.details_mut().k = self.integer()?,
            Attr::Kind => {
                proto.details_mut().fusion_kind =
                    self.choice("kind of fusion", &["kLoop", "kInput", "kOutput", "kCustom"])?;
            }
            Attr::Largest => proto.details_mut().largest = self.boolean()?,
            Attr::LeftSide => {
                proto.details_mut().triangular_solve_options.get_or_insert_default().left_side = self.boolean()?
            }
            Attr::LhsBatchDims => draft.dot.get_or_insert_default().lhs_batch_dimensions = self.integers()?,
            Attr::LhsContractingDims => {
                draft.dot.get_or_insert_default().lhs_contracting_dimensions = self.integers()?
            }
            Attr::LhsRaggedDims => {
                proto.details_mut().ragged_dot_dimension_numbers.get_or_insert_default().lhs_ragged_dimensions =
                    self.integers()?;
            }
            Attr::Literal => proto.literal = self.literal_with_shape()?.into(),
            Attr::Lower if opcode.name == "cholesky" => {
                proto.details_mut().cholesky_options.get_or_insert_default().lower = self.boolean()?;
            }
            Attr::Lower => {
                proto.details_mut().triangular_solve_options.get_or_insert_default().lower = self.boolean()?
            }
            Attr::MantissaBits => proto.details_mut().mantissa_bits = self.integer_i32()?,
            Attr::Metadata => proto.metadata = self.metadata()?.into(),
            // XLA reads and ignores it.
            Attr::Mode => drop(self.word("a mode")?),
            Attr::NumCarries => proto.details_mut().num_carries = self.integer()?,
            Attr::OffsetDims => {
                proto.details_mut().gather_dimension_numbers.get_or_insert_default().offset_dims = self.integers()?;
            }
            Attr::OperandBatchingDims => {
                proto.details_mut().gather_dimension_numbers.get_or_insert_default().operand_batching_dims =
                    self.integers()?;
            }
            Attr::OperandLayoutConstraints => {
                proto.details_mut().operand_shapes_with_layout =
                    self.list(b'{', b'}', "layout constraints", Parser::shape)?;
                proto.details_mut().constrain_layout = true;
            }
            Attr::OperandPrecision => {
                let precisions = self.list(b'{', b'}', "precisions", |parser| parser.enumeration("precision", ""))?;
                proto.precision_config.get_or_insert_default().operand_precision = precisions;
            }
            Attr::Order => {
                proto.details_mut().comparison_order =
                    self.choice("order", &["TOTAL", "PARTIAL", "TOTALORDER", "PARTIALORDER"])?
            }
            Attr::Origin => proto.details_mut().original_value = self.original_value()?.into(),
            Attr::OutfeedConfig => proto.details_mut().outfeed_config = self.bytes()?.into_owned(),
            Attr::OutfeedShape => proto.details_mut().outfeed_shape = self.shape()?.into(),
            Attr::OutputToOperandAliasing => {
                proto.details_mut().output_operand_aliasing = self.output_operand_aliasing()?
            }
            Attr::Padding => proto.details_mut().padding_config = self.padding_config()?.into(),
            Attr::PaddingType => proto.details_mut().padding_type = self.enumeration("kind of padding", "")?,
            Attr::ParameterReplication => {
                let replicated_at_leaf_buffers = self.list(b'{', b'}', "replication", Parser::boolean)?;
                let replication = ParameterReplication { replicated_at_leaf_buffers, ..Default::default() };
                proto.details_mut().parameter_replication = replication.into();
            }
            Attr::ReplicaGroups => proto.details_mut().replica_group_list = Some(self.replica_groups()?),
            Attr::ResultAccuracy => proto.details_mut().result_accuracy = self.result_accuracy()?.into(),
            Attr::RhsBatchDims => draft.dot.get_or_insert_default().rhs_batch_dimensions = self.integers()?,
            Attr::RhsContractingDims => {
                draft.dot.get_or_insert_default().rhs_contracting_dimensions = self.integers()?
            }
            Attr::RhsGroupDims => {
                proto.details_mut().ragged_dot_dimension_numbers.get_or_insert_default().rhs_group_dimensions =
                    self.integers()?;
            }
            Attr::ScatterDimsToOperandDims => {
                proto.details_mut().scatter_dimension_numbers.get_or_insert_default().scatter_dims_to_operand_dims =
                    self.integers()?;
            }
            Attr::ScatterIndicesBatchingDims => {
                let numbers = proto.details_mut().scatter_dimension_numbers.get_or_insert_default();
                numbers.scatter_indices_batching_dims = self.integers()?;
            }
            Attr::Schedule => proto.details_mut().custom_call_schedule = self.enumeration("schedule", "")?,
            Attr::Sharding => proto.sharding = self.sharding()?.into(),
            Attr::Slice => proto.details_mut().slice_dimensions = self.slice_dimensions()?,
            Attr::SliceSizes if opcode.name == "gather" => proto.details_mut().gather_slice_sizes = self.integers()?,
            Attr::SliceSizes => {
                let sizes = self.list(b'{', b'}', "slice sizes", Parser::integers)?;
                proto.details_mut().dynamic_slice_sizes = sizes.concat();
            }
            Attr::SourceTargetPairs => proto.details_mut().source_target_pairs = self.source_target_pairs()?,
            Attr::SparsityConfig => proto.details_mut().sparsity_config = self.sparsity_config()?.into(),
            Attr::StartIndexMap => {
                proto.details_mut().gather_dimension_numbers.get_or_insert_default().start_index_map =
                    self.integers()?;
            }
            Attr::StartIndicesBatchingDims => {
                proto.details_mut().gather_dimension_numbers.get_or_insert_default().start_indices_batching_dims =
                    self.integers()?;
            }
            Attr::Statistics => proto.details_mut().statistics_viz = self.statistics()?.into(),
            Attr::TransposeA => {
                let options = proto.details_mut().triangular_solve_options.get_or_insert_default();
                options.transpose_a = self.enumeration("transposition", "")?;
            }
            Attr::Type => {
                proto.details_mut().comparison_type =
                    self.choice("type of comparison", &["FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"])?;
            }
            Attr::UniqueIndices => proto.details_mut().unique_indices = self.boolean()?,
            Attr::UnitDiagonal => {
                proto.details_mut().triangular_solve_options.get_or_insert_default().unit_diagonal = self.boolean()?;
            }
            Attr::UpdateWindowDims => {
                proto.details_mut().scatter_dimension_numbers.get_or_insert_default().update_window_dims =
                    self.integers()?;
            }
            Attr::UseGlobalDeviceIds => proto.details_mut().use_global_device_ids = self.boolean()?,
            Attr::Window => proto.details_mut().window = self.window()?.into(),
        }
        Ok(())
    }

    /// A value of a protobuf enumeration, in lower or upper case, without the prefix that all its values share.
    fn enumeration<E: Enumeration + 'static>(&mut self, what: &str, prefix: &str) -> Result<EnumValue<E>> {
        let start = self.pos();
        let word = self.eat_word_of(what)?;
        let named = |value: &&E| {
            let name = value.proto_name();
            name.eq_ignore_ascii_case(word)
                || name.strip_prefix(prefix).is_some_and(|name| name.eq_ignore_ascii_case(word))
        };
        E::values().iter().find(named).map(|&value| value.into()).ok_or_else(|| {
            let upper = word.bytes().any(|byte| byte.is_ascii_uppercase());
            let spelled = |value: &E| {
                let name = value.proto_name();
                let name = name.strip_prefix(prefix).unwrap_or(name);
                if upper { name.to_owned() } else { name.to_ascii_lowercase() }
            };
            let names: Vec<String> = E::values().iter().map(spelled).collect();
            fail(start, format!("unknown {what} '{word}'; expected one of {}", names.join(", ")))
        })
    }

    fn eat_word_of(&mut self, what: &str) -> Result<&'a str> {
        // The message is made up only where it is needed.
        if self.peek_word().is_none() {
            return Err(self.expected(&format!("a {what}")));
        }
        self.word(what)
    }

    fn choice(&mut self, what: &str, choices: &[&str]) -> Result<String> {
        let start = self.pos();
        let word = self.eat_word_of(what)?;
        if choices.contains(&word) {
            return Ok(word.to_owned());
        }
        Err(fail(start, format!("unknown {what} '{word}'; expected one of {}", choices.join(", "))))
    }

    /// `"main"` is the same as no name.
    pub(super) fn execution_thread(&mut self) -> Result<String> {
        let thread = self.string()?;
        Ok(if thread == "main" { String::new() } else { thread })
    }

    /// The computation that a name or an instruction list in braces stands for.
    fn computation_reference(&mut self) -> Result<i64> {
        if self.at(b'{') {
            let index = self.nested(|parser| parser.instruction_list("_".into()))?;
            return Ok(index as i64);
        }
        let start = self.pos();
        let name = self.name("a computation")?;
        match self.computation_by_name.get(name) {
            Some(&index) => Ok(index as i64),
            None => {
                let hint = hint(name, self.computation_by_name.keys().copied());
                Err(fail(start, format!("unknown computation '{name}'{hint}")))
            }
        }
    }

    /// `{kind="sharding", entry={...}, exit={...}}`
    fn domain(&mut self, draft: &mut Draft<'a>) -> Result<()> {
        self.for_each_field("domain", |parser, field, at| {
            match field {
                "kind" if parser.string()? == "sharding" => {}
                "kind" => return Err(fail(at, "the only kind of domain is \"sharding\"")),
                // The protobuf form looks from inside the domain instruction, the text from around it.
                "entry" => draft.proto.details_mut().domain_exit_sharding = parser.sharding()?.into(),
                "exit" => draft.proto.details_mut().domain_entry_sharding = parser.sharding()?.into(),
                other => return Err(unknown_field(at, other, "kind, entry or exit")),
            }
            Ok(())
        })
    }

    /// `{mode=highest}` or `{tolerance={atol=0.1, rtol=0.2, ulps=3}}`
    fn result_accuracy(&mut self) -> Result<ResultAccuracy> {
        let mut accuracy = ResultAccuracy::default();
        self.for_each_field("result accuracy", |parser, field, at| {
            accuracy.specs = Some(match field {
                "mode" => Specs::Mode(parser.enumeration("mode", "")?),
                "tolerance" => {
                    let mut tolerance = Tolerance::default();
                    parser.for_each_field("tolerance", |parser, field, at| {
                        match field {
                            "atol" => tolerance.atol = parser.number()?,
                            "rtol" => tolerance.rtol = parser.number()?,
                            "ulps" => tolerance.ulps = parser.number()? as i64,
                            other => return Err(unknown_field(at, other, "atol, rtol or ulps")),
                        }
                        Ok(())
                    })?;
                    tolerance.into()
                }
                other => return Err(unknown_field(at, other, "mode or tolerance")),
            });
            Ok(())
        })?;
        Ok(accuracy)
    }

    /// `{{0,1},{1,0}}`
    fn source_target_pairs(&mut self) -> Result<Vec<SourceTarget>> {
        self.list(b'{', b'}', "source-target pairs", |parser| {
            let start = parser.pos();
            match parser.integers()?.as_slice() {
                &[source, target] => Ok(SourceTarget { source, target, ..Default::default() }),
                other => Err(fail(start, format!("expected {{source,target}}, found {} numbers", other.len()))),
            }
        })
    }

    /// `{{0}: (1, {}), {1}: (0, {2})}`
    fn output_operand_aliasing(&mut self) -> Result<Vec<OutputOperandAliasing>> {
        self.list(b'{', b'}', "aliasing", |parser| {
            let output_shape_index = parser.integers()?;
            parser.expect(b':', "after the output's index")?;
            parser.expect(b'(', "before the operand")?;
            let operand_index = parser.integer()?;
            let operand_shape_index = if parser.eat(b',') { parser.integers()? } else { Vec::new() };
            parser.eat(b',').then(|| parser.word("a kind of aliasing")).transpose()?;
            parser.expect(b')', "after the operand")?;
            Ok(OutputOperandAliasing { output_shape_index, operand_index, operand_shape_index, ..Default::default() })
        })
    }
}

fn not_allowed(opcode: &Opcode, name: &str, known: bool, allowed: AttrSet) -> String {
    let list = || {
        let own: Vec<&str> = opcode.allowed.names().collect();
        let own = if own.is_empty() { "none of its own".to_owned() } else { own.join(", ") };
        format!("; it takes {own}, besides those of every instruction")
    };
    let hint = if known { list() } else { hint_or(name, allowed.names(), list) };
    format!("{} has no attribute '{name}'{hint}", opcode.name)
}
