import Foundation
import Settings

/// What other users of this machine may do to a file of the configuration.
enum FileAccess: Equatable {
    /// Change the file, and so the program's behaviour.
    case writable
    /// Put another file in its place: its directory lets everybody write, without the sticky bit.
    case replaceable
    /// Read a secret.
    case readable

    private static let sticky = 0o1000
    private static let othersRead = 0o004
    private static let othersWrite = 0o002

    /// The worst of these; nil where none holds, and for a file that cannot be examined.
    init?(to file: NamedFile) {
        let url = URL(filePath: file.path)
        guard let mode = Self.mode(url, .typeRegular) else { return nil }
        let directory = Self.mode(url.deletingLastPathComponent(), .typeDirectory) ?? 0
        if mode & Self.othersWrite != 0 {
            self = .writable
        } else if directory & Self.othersWrite != 0, directory & Self.sticky == 0 {
            self = .replaceable
        } else if file.holdsSecret, mode & Self.othersRead != 0 {
            self = .readable
        } else {
            return nil
        }
    }

    private static func mode(_ url: URL, _ type: FileAttributeType) -> Int? {
        let path = url.resolvingSymlinksInPath().path(percentEncoded: false)
        guard let attributes = try? FileManager.default.attributesOfItem(atPath: path),
            attributes[.type] as? FileAttributeType == type
        else { return nil }
        return (attributes[.posixPermissions] as? NSNumber)?.intValue
    }
}

extension Settings {
    /// Every file that the settings and the configuration name, and the configuration itself.
    func allFiles(_ configuration: Configuration) -> [NamedFile] {
        let own = configurationPath.map {
            NamedFile(key: "MAKEGOOD_CONFIG", path: $0, holdsSecret: configuration.holdsSecret)
        }
        return files + (own.map { [$0] } ?? []) + configuration.files
    }
}
