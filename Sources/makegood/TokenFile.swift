import Foundation

/// A file of signed transactions, one a line, read piece by piece: a million of them are 4 GB.
actor TokenFile {
    private static let chunkBytes = 1 << 20
    /// The largest request that ingest can be told to take.
    private static let lineBytesMax = 16 << 20

    private let name: String
    private let handle: FileHandle
    private var chunk: [UInt8] = []
    private var position = 0
    private var line = 0
    private var isAtEnd = false

    init(path: String) throws(UnusableInput) {
        let file = InputFile(path: path)
        name = file.name
        handle = try file.open()
    }

    /// The next tokens, at most `count`; fewer only at the end of the file. Empty lines are passed over.
    ///
    /// - Throws: if the file cannot be read, or a line has a character that no JWS has (they are written into a JSON
    ///   text as they are).
    func next(_ count: Int) throws(UnusableInput) -> [String] {
        var tokens: [String] = []
        while tokens.count < count, let bytes = try nextLine() {
            line += 1
            let token = bytes.last == 0x0D ? bytes.dropLast() : bytes
            if token.isEmpty { continue }
            guard token.allSatisfy(Self.isTokenByte) else {
                throw UnusableInput("\(name), line \(line): not a signed transaction")
            }
            tokens.append(String(decoding: token, as: UTF8.self))
        }
        return tokens
    }

    private func nextLine() throws(UnusableInput) -> ArraySlice<UInt8>? {
        while true {
            if let end = chunk[position...].firstIndex(of: 0x0A) {
                defer { position = end + 1 }
                return chunk[position..<end]
            }
            if isAtEnd {
                defer { position = chunk.count }
                return position < chunk.count ? chunk[position...] : nil
            }
            guard chunk.count - position <= Self.lineBytesMax else {
                throw UnusableInput("\(name), line \(line + 1): more than \(Self.lineBytesMax) bytes")
            }
            let more: Data?
            do { more = try handle.read(upToCount: Self.chunkBytes) } catch {
                throw UnusableInput("cannot read \(name)")
            }
            chunk.removeSubrange(..<position)
            position = 0
            if let more, !more.isEmpty { chunk.append(contentsOf: more) } else { isAtEnd = true }
        }
    }

    /// base64url, and the dots between the parts.
    private static func isTokenByte(_ byte: UInt8) -> Bool {
        switch byte {
        case 0x30...0x39, 0x41...0x5A, 0x61...0x7A, UInt8(ascii: "-"), UInt8(ascii: "_"), UInt8(ascii: "."): true
        default: false
        }
    }
}
