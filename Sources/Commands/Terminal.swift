package import ArgumentParser
import Foundation
import Glibc

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

    /// Asks the person at the terminal; everything but `y` and `yes` is no. Nil: standard input is no terminal, so there
    /// is nobody to ask.
    package static func confirms(_ question: String) -> Bool? {
        guard isatty(FileHandle.standardInput.fileDescriptor) == 1 else { return nil }
        try? FileHandle.standardError.write(contentsOf: Data("\(question) [y/N] ".utf8))
        return ["y", "yes"].contains(readLine()?.lowercased())
    }
}

/// One line on the terminal's standard error that tells how far a long command has come. Where standard error is no
/// terminal, nothing is written.
package struct TerminalProgress {
    private let isTerminal = isatty(FileHandle.standardError.fileDescriptor) == 1

    package init() {}

    package func show(_ text: String) { write("\r\u{1B}[K\(text)") }

    /// Takes the line away, before a result is shown or when the command ends.
    package func clear() { write("\r\u{1B}[K") }

    private func write(_ text: String) {
        guard isTerminal else { return }
        try? FileHandle.standardError.write(contentsOf: Data(text.utf8))
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
