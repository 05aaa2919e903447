//! What XLA stores of an instruction although its text leaves it out.

use super::Parser;
use super::attr::{Attr, AttrSet};
use super::computation::Scope;
use super::cursor::fail;
use super::error::Result;
use super::instruction::{Draft, shape_cost};
use super::opcode::Rule;
use crate::dtype::DType;
use crate::hlo::shape::{compatible, dtype};
use crate::proto::hlo_instruction_details::ReplicaGroupList;
use crate::proto::precision_config::Precision;
use crate::proto::{CollectiveDeviceListProto, CustomCallApiVersion, HloInstructionProto, ShapeProto, TriState};

impl<'a> Parser<'a> {
    /// Fills in defaults, and checks what they rest on.
    pub(super) fn set_defaults(&mut self, scope: &Scope<'a>, draft: &mut Draft<'a>) -> Result<()> {
        let Draft { start, opcode, seen, ref mut proto, ref mut dot, .. } = *draft;
        let operands = proto.operand_ids.len();
        match opcode.rule {
            Rule::Collective if proto.details().replica_group_list.is_none() => {
                proto.details_mut().replica_group_list =
                    Some(ReplicaGroupList::from(CollectiveDeviceListProto::default()));
            }
            Rule::Broadcast if !(seen.contains(Attr::Dimensions) || is_scalar(scope.operand_shape(proto, 0))) => {
                let message = "broadcast needs the attribute 'dimensions' unless its operand is a scalar";
                return Err(fail(start, message));
            }
            Rule::Cholesky => drop(proto.details_mut().cholesky_options.get_or_insert_default()),
            Rule::TriangularSolve => drop(proto.details_mut().triangular_solve_options.get_or_insert_default()),
            Rule::Compare if proto.details().comparison_type.is_empty() => {
                let by_type = comparison_type(scope.operand_shape(proto, 0));
                // What readers go by that do not know of `order=`.
                let total = by_type == "FLOAT" && proto.details().comparison_order.starts_with("TOTAL");
                proto.details_mut().comparison_type = if total { "TOTALORDER" } else { by_type }.to_owned();
            }
            Rule::Dot | Rule::ScaledDot => {
                dot.get_or_insert_default();
                proto.dot_dimension_numbers = std::mem::take(dot);
                default_precision(proto, 2);
            }
            Rule::RaggedDot => {
                let numbers = proto.details_mut().ragged_dot_dimension_numbers.get_or_insert_default();
                dot.get_or_insert_default();
                numbers.dot_dimension_numbers = std::mem::take(dot);
                default_precision(proto, 2);
            }
            Rule::Convolution => {
                proto.details_mut().window.get_or_insert_default();
                default_group_counts(proto, seen);
                default_precision(proto, operands);
            }
            Rule::CustomCall => {
                default_group_counts(proto, seen);
                default_precision(proto, operands);
                if !seen.contains(Attr::ApiVersion) {
                    proto.details_mut().custom_call_api_version = CustomCallApiVersion::API_VERSION_ORIGINAL.into();
                }
                check_layout_constraints(scope, start, proto)?;
            }
            Rule::ReduceWindow | Rule::SelectAndScatter => drop(proto.details_mut().window.get_or_insert_default()),
            Rule::TopK => {
                proto.details_mut().largest |= !seen.contains(Attr::Largest);
                proto.details_mut().is_stable |= !seen.contains(Attr::IsStable);
            }
            Rule::Scan if !seen.contains(Attr::IsAssociative) => {
                proto.details_mut().is_associative = TriState::TRI_STATE_FALSE.into();
            }
            Rule::Outfeed if !seen.contains(Attr::OutfeedShape) => {
                self.charge(start, shape_cost(scope.operand_shape(proto, 0)))?;
                proto.details_mut().outfeed_shape = scope.operand_shape(proto, 0).clone().into();
            }
            Rule::Fusion => {
                for &id in &proto.called_computation_ids {
                    self.computations[id as usize].is_fusion_computation = true;
                }
            }
            Rule::Conditional => check_branches(scope, seen, start, proto)?,
            Rule::AsyncStart => self.set_execution_thread(start, proto)?,
            Rule::AsyncUpdate | Rule::AsyncDone => scope.check_async(start, proto)?,
            _ => {}
        }
        Ok(())
    }
}

fn is_scalar(shape: &ShapeProto) -> bool {
    shape.dimensions.is_empty() && dtype(shape).is_some()
}

fn default_precision(proto: &mut HloInstructionProto, operands: usize) {
    let precision = &mut proto.precision_config.get_or_insert_default().operand_precision;
    if precision.is_empty() {
        *precision = vec![Precision::DEFAULT.into(); operands];
    }
}

fn default_group_counts(proto: &mut HloInstructionProto, seen: AttrSet) {
    if !seen.contains(Attr::FeatureGroupCount) {
        proto.details_mut().feature_group_count = 1;
    }
    if !seen.contains(Attr::BatchGroupCount) {
        proto.details_mut().batch_group_count = 1;
    }
}

/// How XLA compares values of the first operand's type when the text does not say.
fn comparison_type(shape: &ShapeProto) -> &'static str {
    match dtype(shape) {
        Some(DType::S1 | DType::S2 | DType::S4 | DType::S8 | DType::S16 | DType::S32 | DType::S64) => "SIGNED",
        Some(DType::Pred | DType::U1 | DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64) => {
            "UNSIGNED"
        }
        _ => "FLOAT",
    }
}

fn check_layout_constraints(scope: &Scope, start: usize, proto: &HloInstructionProto) -> Result<()> {
    let constraints = &proto.details().operand_shapes_with_layout;
    let actual = scope.operand_shapes(proto);
    let fits = constraints.len() == actual.len() && constraints.iter().zip(actual).all(|(a, b)| compatible(a, b));
    if proto.details().constrain_layout && !fits {
        return Err(fail(start, "the operand layout constraints are not the shapes of the operands"));
    }
    Ok(())
}

fn check_branches(scope: &Scope, seen: AttrSet, start: usize, proto: &HloInstructionProto) -> Result<()> {
    let selector = scope.operand_shape(proto, 0);
    let by_pred = match (is_scalar(selector), dtype(selector)) {
        (true, Some(DType::Pred)) => true,
        (true, Some(DType::S32)) => false,
        _ => return Err(fail(start, "the first operand of a conditional is a scalar of type pred or s32")),
    };
    let expected: &[Attr] =
        if by_pred { &[Attr::TrueComputation, Attr::FalseComputation] } else { &[Attr::BranchComputations] };
    if let Some(missing) = AttrSet::of(expected).without(seen).names().next() {
        return Err(fail(start, format!("conditional needs the attribute '{missing}'")));
    }
    let (branches, operands) = (proto.called_computation_ids.len(), proto.operand_ids.len() - 1);
    if branches != operands {
        return Err(fail(start, format!("the conditional has {branches} branches and operands for {operands}")));
    }
    Ok(())
}
