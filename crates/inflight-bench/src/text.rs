//! Reading files of text that others have named: they may be anything.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Reads a file to its end, which has to come: a device may have none.
///
/// # Errors
///
/// Beside those of opening and reading, `FileTooLarge` of more than so many bytes, and
/// `InvalidData` of what is not text.
pub(crate) fn read(path: &Path, most_bytes: u64) -> io::Result<String> {
    let too_large = || io::Error::from(ErrorKind::FileTooLarge);
    let file = File::open(path)?;
    if file.metadata()?.len() > most_bytes {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let read = file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    match u64::try_from(read).is_ok_and(|read| read <= most_bytes) {
        true => String::from_utf8(bytes)
            .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error())),
        false => Err(too_large()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_read_up_to_a_limit() {
        let kind = read(Path::new("/dev/zero"), 1 << 16).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::FileTooLarge);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "text").unwrap();
        assert_eq!(read(file.path(), 4).unwrap(), "text");
        let kind = read(file.path(), 3).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::FileTooLarge);
        std::fs::write(file.path(), [0xff]).unwrap();
        let kind = read(file.path(), 4).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidData);
    }
}
