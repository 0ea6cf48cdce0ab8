package import ArgumentParser
import Foundation

/// What a person sees: results on standard output, everything else on standard error. Nothing is buffered, so a line is
/// in a log file as soon as the command has written it.
package enum Terminal {
    package static func show(_ bytes: [UInt8]) {
        try? FileHandle.standardOutput.write(contentsOf: Data(bytes + [UInt8(ascii: "\n")]))
    }

    package static func show(_ text: String) { show(Array(text.utf8)) }

    package static func tell(_ text: String) {
        try? FileHandle.standardError.write(contentsOf: Data("\(text)\n".utf8))
    }
}

/// A file or an option that a command cannot work with, said in one line for the person who typed it.
package struct UnusableInput: Error, CustomStringConvertible {
    package let description: String

    package init(_ description: String) { self.description = description }
}

extension ExitCode {
    /// The command could not begin: the options or the file are of no use.
    package static let unusableInput = ExitCode(2)
}
