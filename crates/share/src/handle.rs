//! Handles: what travels to the process that opens a block.

use crate::error::ShareError;
use crate::uuid::Uuid;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes of a [`Handle`].
pub const HANDLE_BYTES: usize = 192;
/// The first bytes of a handle.
const MAGIC: [u8; 8] = *b"gapless2";
/// Where the device is in a handle.
const DEVICE: Range<usize> = HANDLE_BYTES - size_of::<Uuid>()..HANDLE_BYTES;
/// Longest path of a socket.
pub const MOST_PATH_BYTES: usize = 107;

/// 128 random bits. Whoever knows those of a block can open it: they are in no log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token([u8; 16]);

impl Token {
    /// The bits as they travel.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(..)")
    }
}

/// Names an exporter. The name alone does not: whoever has a handle could lend it to a socket of their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    pub name: Token,
    pub socket: PathBuf,
}

/// Names a block of an [`Exporter`](crate::Exporter). Plain bytes, good in any process of the user as long as the block is live;
/// whoever has them can open it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(crate) source: Source,
    pub(crate) token: Token,
    /// That of the memory, if its driver names it.
    pub(crate) device: Option<Uuid>,
}

impl Handle {
    /// The bytes that travel.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        let path = self.source.socket.as_os_str().as_bytes();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.source.name.0);
        bytes[24..40].copy_from_slice(&self.token.0);
        bytes[40] = u8::try_from(path.len()).expect("the path of a socket is short");
        bytes[41..41 + path.len()].copy_from_slice(path);
        bytes[DEVICE].copy_from_slice(&self.device.unwrap_or_default());
        bytes
    }

    /// The handle that these bytes are of.
    ///
    /// # Errors
    /// [`ShareError::NoHandle`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ShareError> {
        if bytes.len() != HANDLE_BYTES || bytes[..8] != MAGIC {
            return Err(ShareError::NoHandle);
        }
        let path = &bytes[41..DEVICE.start];
        let length = usize::from(bytes[40]);
        if length > MOST_PATH_BYTES || path[..length].contains(&0) || path[length..].iter().any(|byte| *byte != 0) {
            return Err(ShareError::NoHandle);
        }
        let socket = PathBuf::from(std::ffi::OsString::from_vec(path[..length].to_vec()));
        if !socket.is_absolute() {
            return Err(ShareError::NoHandle);
        }
        let number = |at: usize| bytes[at..at + 16].try_into().expect("16 bytes");
        let device = Some(number(DEVICE.start)).filter(|device| *device != Uuid::default());
        Ok(Self { source: Source { name: Token(number(8)), socket }, token: Token(number(24)), device })
    }

    /// Returns the name of the physical device of the memory, as [`MemoryDriver::uuid`](gapless::driver::MemoryDriver::uuid) does;
    /// `None` where the exporting process's driver does not name it.
    #[must_use]
    pub fn device(&self) -> Option<Uuid> {
        self.device
    }
}

/// A path for a socket, if it is not too long.
pub fn socket_path(folder: &Path, name: &str) -> Result<PathBuf, ShareError> {
    let path = std::path::absolute(folder.join(name)).unwrap_or_else(|_| folder.join(name));
    if path.as_os_str().len() > MOST_PATH_BYTES { Err(ShareError::LongPath(path)) } else { Ok(path) }
}

/// 128 bits that nobody can guess.
pub fn random() -> Result<Token, ShareError> {
    let mut token = [0; 16];
    let mut got = 0;
    while got < token.len() {
        got += getrandom(&mut token[got..], GetRandomFlags::empty()).map_err(ShareError::system("random bits"))?;
    }
    Ok(Token(token))
}
