//! Shapes, of which a module has few different ones.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use buffa::bytes::Buf;
use buffa::encoding::Tag;
use buffa::{DecodeContext, DecodeError, EncodeSink, Inline, Message, MessageField, SizeCache};

use super::ShapeProto;

/// A [`ShapeProto`] in a place where modules name the same shapes over and over.
///
/// Clones are one shape until one of them is written to, and that shape is encoded once.
#[derive(Clone, Default)]
pub struct SharedShape(Arc<Kept>);

#[derive(Default)]
struct Kept {
    shape: ShapeProto,
    /// What the shape is on the wire, once that was asked for.
    encoding: OnceLock<Box<[u8]>>,
}

impl SharedShape {
    fn encoding(&self) -> &[u8] {
        self.0.encoding.get_or_init(|| self.0.shape.encode_to_vec().into())
    }
}

/// The clone is made to be changed.
impl Clone for Kept {
    fn clone(&self) -> Kept {
        self.shape.clone().into()
    }
}

impl From<ShapeProto> for Kept {
    fn from(shape: ShapeProto) -> Kept {
        Kept { shape, encoding: OnceLock::new() }
    }
}

impl From<ShapeProto> for SharedShape {
    fn from(shape: ShapeProto) -> SharedShape {
        SharedShape(Arc::new(shape.into()))
    }
}

impl From<ShapeProto> for MessageField<SharedShape, Inline<SharedShape>> {
    fn from(shape: ShapeProto) -> Self {
        MessageField::some(shape.into())
    }
}

impl From<SharedShape> for ShapeProto {
    fn from(shape: SharedShape) -> ShapeProto {
        Arc::unwrap_or_clone(shape.0).shape
    }
}

impl Deref for SharedShape {
    type Target = ShapeProto;

    #[inline]
    fn deref(&self) -> &ShapeProto {
        &self.0.shape
    }
}

impl DerefMut for SharedShape {
    fn deref_mut(&mut self) -> &mut ShapeProto {
        let kept = Arc::make_mut(&mut self.0);
        kept.encoding.take();
        &mut kept.shape
    }
}

impl PartialEq for SharedShape {
    fn eq(&self, other: &SharedShape) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl fmt::Debug for SharedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

buffa::impl_default_instance!(SharedShape);

impl Message for SharedShape {
    #[inline]
    fn compute_size(&self, _: &mut SizeCache) -> u32 {
        u32::try_from(self.encoding().len()).unwrap_or(u32::MAX)
    }

    #[inline]
    fn write_to(&self, _: &mut SizeCache, buffer: &mut impl EncodeSink) {
        buffer.put_slice(self.encoding());
    }

    fn merge_field(&mut self, tag: Tag, buffer: &mut impl Buf, context: DecodeContext<'_>) -> Result<(), DecodeError> {
        (**self).merge_field(tag, buffer, context)
    }

    fn clear(&mut self) {
        (**self).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_encoded_as_they_are() {
        let mut shape = SharedShape::from(ShapeProto { dimensions: vec![2, 3], ..ShapeProto::default() });
        let before = shape.clone();
        assert_eq!(before.encode_to_vec(), (*before).encode_to_vec());
        shape.dimensions.push(4);
        assert_eq!(before.dimensions, [2, 3]);
        for shape in [before, shape] {
            assert_eq!(shape.encode_to_vec(), (*shape).encode_to_vec());
            assert_eq!(SharedShape::decode_from_slice(&shape.encode_to_vec()).unwrap(), shape);
        }
    }
}
