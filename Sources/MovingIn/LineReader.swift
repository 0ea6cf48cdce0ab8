/// The lines of a file in bounded memory. LF or CRLF ends a line; a byte order mark at the beginning is passed over.
package struct LineReader {
    package struct Line: Sendable, Equatable {
        /// The line's number, from 1.
        package let number: Int
        /// The bytes without the line end. Nil: the line is longer than `LineReader.lineBytesMax` and was skipped.
        package let bytes: [UInt8]?
    }

    package static let lineBytesMax = 64 << 10

    /// The next bytes of the file; empty at its end.
    package typealias Source = () throws -> [UInt8]

    private static let newline = UInt8(ascii: "\n")
    private static let byteOrderMark: [UInt8] = [0xEF, 0xBB, 0xBF]

    private let source: Source
    private var buffer: [UInt8] = []
    private var position = 0
    private var number = 0
    private var isAtEnd = false
    /// Lines to be read once more; the last of the array is next.
    private var returned: [Line] = []
    /// Whether the last line had an end. Without one the file may have been cut off.
    package private(set) var endsWithNewline = true

    package init(_ source: @escaping Source) {
        self.source = source
    }

    /// The next line; nil at the end. Throws the errors of the source.
    package mutating func next() throws -> Line? {
        if let line = returned.popLast() { return line }
        if number == 0 { try skipByteOrderMark() }
        var isTooLong = false
        while true {
            if let end = buffer[position...].firstIndex(of: Self.newline) {
                let line = isTooLong ? nil : content(position..<end)
                position = end + 1
                number += 1
                return Line(number: number, bytes: line)
            }
            if isTooLong || buffer.count - position > Self.lineBytesMax + 1 {
                isTooLong = true
                position = buffer.count
            }
            guard try fill() else { break }
        }
        guard isTooLong || position < buffer.count else { return nil }
        endsWithNewline = false
        let line = isTooLong ? nil : content(position..<buffer.count)
        position = buffer.count
        number += 1
        return Line(number: number, bytes: line)
    }

    /// Takes back lines that will be read once more, in their order.
    package mutating func giveBack(_ lines: [Line]) { returned += lines.reversed() }

    private func content(_ range: Range<Int>) -> [UInt8]? {
        var bytes = buffer[range]
        if bytes.last == UInt8(ascii: "\r") { bytes = bytes.dropLast() }
        return bytes.count > Self.lineBytesMax ? nil : Array(bytes)
    }

    /// Reads more bytes and drops those already used. Returns false at the end of the file.
    private mutating func fill() throws -> Bool {
        guard !isAtEnd else { return false }
        buffer.removeSubrange(..<position)
        position = 0
        let chunk = try source()
        isAtEnd = chunk.isEmpty
        buffer += chunk
        return !isAtEnd
    }

    private mutating func skipByteOrderMark() throws {
        while buffer.count < Self.byteOrderMark.count, try fill() {}
        if buffer.starts(with: Self.byteOrderMark) { position = Self.byteOrderMark.count }
    }
}
