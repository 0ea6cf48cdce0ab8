import Foundation
import Testing

@testable import Service

/// Goal: a file is read the same, whether it is plain or compressed, and however it comes in pieces; a compressed file
/// that was cut or damaged is told. Method: files of another program's gzip, cut at every byte.
@Suite struct UnpackedFileTests {
    private static let text = Array(#"{"userId":"u-body","receipt":"QUJD"}"#.utf8)
    private static let gzip = bytes("H4sIAAAAAAACA6tWKi1OLfJMUbJSKtVNyk+pVNJRKkpNTs0sKAEKBYZ6uSjVAgC1WacnJAAAAA==")
    /// `{"userId":` and the rest.
    private static let twoMembers =
        bytes("H4sIAAAAAAACA6tWKi1OLfJMUbICAOEvQ2sKAAAA")
        + bytes("H4sIAAAAAAACA1Mq1U3KT6lU0lEqSk1OzSwoUbJSCgz1clGqBQBa/bSEGgAAAA==")

    private static func bytes(_ base64: String) -> [UInt8] { Array(Data(base64Encoded: base64) ?? Data()) }

    /// The content of a file that comes in pieces of so many bytes.
    private static func read(_ file: [UInt8], pieces: Int) throws -> [UInt8] {
        var rest = file[...]
        let unpacked = UnpackedFile {
            defer { rest = rest.dropFirst(pieces) }
            return Array(rest.prefix(pieces))
        }
        var content: [UInt8] = []
        while true {
            let next = try unpacked.next()
            if next.isEmpty { return content }
            content += next
        }
    }

    @Test("plain, compressed, and compressed in two members, in pieces of any length", arguments: [1, 2, 3, 7, 1000])
    func content(pieces: Int) throws {
        for file in [Self.text, Self.gzip, Self.twoMembers] {
            #expect(try Self.read(file, pieces: pieces) == Self.text)
        }
        for file in [[], [0x1F], [0x1F, 0x20], Array("a\tb\n".utf8)] as [[UInt8]] {
            #expect(try Self.read(file, pieces: pieces) == file)
        }
    }

    @Test("a compressed file that was cut anywhere, and a damaged one")
    func damage() throws {
        for length in 2..<Self.gzip.count {
            #expect(throws: UnpackedFile.Failure.cut, "\(length)") {
                try Self.read(Array(Self.gzip.prefix(length)), pieces: 5)
            }
        }
        var damaged = Self.gzip
        damaged[damaged.count - 5] ^= 1
        #expect(throws: UnpackedFile.Failure.corrupt) { try Self.read(damaged, pieces: 5) }
    }

    @Test("a compressed file of 30 MB is read piece by piece")
    func large() throws {
        // Stored blocks (RFC 1951, 3.2.4) need no compressor. The file has no end.
        let block = [UInt8](repeating: UInt8(ascii: "x"), count: 65_535)
        let count = 460
        var blocks = 0
        var sent = 0
        let unpacked = UnpackedFile {
            defer { sent += 1 }
            if sent == 0 { return [0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3] }
            guard blocks < count else { return [] }
            blocks += 1
            return [0, 0xFF, 0xFF, 0, 0] + block
        }
        var (total, largest) = (0, 0)
        #expect(throws: UnpackedFile.Failure.cut) {
            while true {
                let next = try unpacked.next()
                total += next.count
                largest = max(largest, next.count)
            }
        }
        #expect(total == count * block.count && largest < 1 << 20)
    }
}
