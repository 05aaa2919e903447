//! Instructions, which are two messages in one.

use std::ops::{Deref, DerefMut};

use buffa::bytes::Buf;
use buffa::encoding::Tag;
use buffa::{DecodeContext, DecodeError, EncodeSink, Message, MessageField, SizeCache};

use super::{HloInstructionCommon, HloInstructionDetails};

/// The numbers of the fields of [`HloInstructionCommon`].
const COMMON_FIELDS: [u32; 17] = [1, 2, 3, 7, 8, 9, 13, 14, 26, 30, 35, 36, 37, 38, 40, 51, 68];

/// XLA's message of the same name: what most instructions have, and aside from it what only some opcodes have.
///
/// A module has as many of these as it has lines. In one piece, an instruction would take a kilobyte.
#[derive(Clone, Debug, Default)]
pub struct HloInstructionProto {
    common: HloInstructionCommon,
    details: MessageField<HloInstructionDetails>,
}

impl HloInstructionProto {
    /// An instruction that has nothing but an opcode.
    pub fn new(opcode: &str) -> HloInstructionProto {
        HloInstructionCommon { opcode: opcode.into(), ..Default::default() }.into()
    }

    /// What only some opcodes have.
    #[inline]
    pub fn details(&self) -> &HloInstructionDetails {
        &self.details
    }

    /// What only some opcodes have, to be changed.
    pub fn details_mut(&mut self) -> &mut HloInstructionDetails {
        self.details.get_or_insert_default()
    }

    /// What only some opcodes have, to be changed if any of it is set.
    pub fn existing_details_mut(&mut self) -> Option<&mut HloInstructionDetails> {
        self.details.as_option_mut()
    }

    /// This instruction with other details.
    #[must_use]
    pub fn with_details(self, details: impl Into<MessageField<HloInstructionDetails>>) -> HloInstructionProto {
        HloInstructionProto { details: details.into(), ..self }
    }
}

impl From<HloInstructionCommon> for HloInstructionProto {
    fn from(common: HloInstructionCommon) -> HloInstructionProto {
        HloInstructionProto { common, ..HloInstructionProto::default() }
    }
}

impl Deref for HloInstructionProto {
    type Target = HloInstructionCommon;

    #[inline]
    fn deref(&self) -> &HloInstructionCommon {
        &self.common
    }
}

impl DerefMut for HloInstructionProto {
    #[inline]
    fn deref_mut(&mut self) -> &mut HloInstructionCommon {
        &mut self.common
    }
}

/// Details that are there and say nothing are equal to none.
impl PartialEq for HloInstructionProto {
    fn eq(&self, other: &HloInstructionProto) -> bool {
        self.common == other.common && self.details() == other.details()
    }
}

buffa::impl_default_instance!(HloInstructionProto);

/// The order of fields does not matter on the wire, so one message's fields follow the other's.
impl Message for HloInstructionProto {
    fn compute_size(&self, cache: &mut SizeCache) -> u32 {
        let common = self.common.compute_size(cache);
        match self.details.as_option() {
            Some(details) => common.saturating_add(details.compute_size(cache)),
            None => common,
        }
    }

    fn write_to(&self, cache: &mut SizeCache, buffer: &mut impl EncodeSink) {
        self.common.write_to(cache, buffer);
        if let Some(details) = self.details.as_option() {
            details.write_to(cache, buffer);
        }
    }

    fn merge_field(&mut self, tag: Tag, buffer: &mut impl Buf, context: DecodeContext<'_>) -> Result<(), DecodeError> {
        if COMMON_FIELDS.contains(&tag.field_number()) {
            self.common.merge_field(tag, buffer, context)
        } else {
            self.details_mut().merge_field(tag, buffer, context)
        }
    }

    fn clear(&mut self) {
        *self = HloInstructionProto::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ShapeProto;

    /// An instruction with every common field and one other.
    fn full() -> HloInstructionProto {
        // Without `..`, so that a field that is added must be named here.
        let common = HloInstructionCommon {
            name: "n".into(),
            opcode: "o".into(),
            shape: ShapeProto::default().into(),
            metadata: Some(Default::default()).into(),
            literal: Some(Default::default()).into(),
            parameter_number: 1,
            tuple_index: 1,
            dimensions: vec![1],
            channel_id: 1,
            dot_dimension_numbers: Some(Default::default()).into(),
            id: 1,
            operand_ids: [1].into(),
            control_predecessor_ids: vec![1],
            called_computation_ids: [1].into(),
            sharding: Some(Default::default()).into(),
            precision_config: Some(Default::default()).into(),
            frontend_attributes: Some(Default::default()).into(),
            __buffa_unknown_fields: Default::default(),
        };
        HloInstructionProto::from(common).with_details(HloInstructionDetails { largest: true, ..Default::default() })
    }

    #[test]
    fn every_field_finds_its_message() {
        let instruction = full();
        let again = HloInstructionProto::decode_from_slice(&instruction.encode_to_vec()).unwrap();
        assert_eq!(again, instruction);
        assert_eq!(again.encode_to_vec(), instruction.encode_to_vec());
        assert!(again.details().__buffa_unknown_fields.is_empty());
    }

    #[test]
    fn fields_that_are_unknown_stay() {
        let mut bytes = full().encode_to_vec();
        // Field 2000, a varint.
        bytes.extend([0x80, 0x7d, 5]);
        let instruction = HloInstructionProto::decode_from_slice(&bytes).unwrap();
        assert_eq!(instruction.encode_to_vec().len(), bytes.len());
    }

    #[test]
    fn empty_details_are_none() {
        let mut instruction = HloInstructionProto::default();
        instruction.details_mut();
        assert_eq!(instruction, HloInstructionProto::default());
    }

    #[test]
    fn instructions_are_small() {
        assert!(size_of::<HloInstructionProto>() <= 280, "{}", size_of::<HloInstructionProto>());
    }
}
