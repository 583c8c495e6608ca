//! Other programs that must succeed, and the packages that they come from.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// What a program prints on its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&bytes(command)?).into_owned())
}

/// The same, of one that prints no text.
pub(crate) fn bytes(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| {
        let package = package_of(&name);
        format!("cannot run {name}: it is in the Debian package {package}")
    })?;
    ensure!(
        output.status.success(),
        "{name} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

fn package_of(program: &str) -> &str {
    match program {
        "apt-cache" | "apt-get" => "apt",
        "dpkg-deb" => "dpkg",
        "ldd" => "libc-bin",
        "losetup" => "util-linux",
        "mkfs.btrfs" => "btrfs-progs",
        "mkfs.ext4" => "e2fsprogs",
        "mkfs.xfs" => "xfsprogs",
        "umount" => "mount",
        "xz" => "xz-utils",
        itself => itself,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_says_why_and_what_is_missing_where_it_is() {
        let failed = output(Command::new("ls").arg("/no such folder"));
        let failed = format!("{:#}", failed.unwrap_err());
        assert!(failed.starts_with("ls failed: "), "{failed}");
        let missing = output(Command::new("mkfs.xfs").env("PATH", "/no such folder"));
        let missing = format!("{:#}", missing.unwrap_err());
        assert!(missing.contains("package xfsprogs"), "{missing}");
        assert_eq!(bytes(Command::new("printf").arg("\\377")).unwrap(), [255]);
    }
}
