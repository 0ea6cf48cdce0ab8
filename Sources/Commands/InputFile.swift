package import Foundation

/// A file that a command line names; `-` is standard input.
package struct InputFile {
    private static let chunkBytes = 1 << 16

    package let path: String

    package init(path: String) { self.path = path }

    /// The whole content.
    ///
    /// - Throws: if the file cannot be read, holds nothing but white space, or has more than `bytesMax` bytes. Of a
    ///   longer file no more than that is read.
    package func read(bytesMax: Int) throws(UnusableInput) -> [UInt8] {
        let handle = try open()
        var bytes: [UInt8] = []
        do {
            while bytes.count <= bytesMax, let chunk = try handle.read(upToCount: Self.chunkBytes), !chunk.isEmpty {
                bytes.append(contentsOf: chunk)
            }
        } catch {
            throw UnusableInput("cannot read \(name)")
        }
        guard bytes.count <= bytesMax else {
            throw UnusableInput("\(name) has more than \(bytesMax) bytes")
        }
        guard bytes.contains(where: { $0 != 0x20 && !(0x09...0x0D).contains($0) }) else {
            throw UnusableInput("\(name) is empty")
        }
        return bytes
    }

    package func open() throws(UnusableInput) -> FileHandle {
        if path == "-" { return .standardInput }
        guard let handle = FileHandle(forReadingAtPath: path) else { throw UnusableInput("cannot read \(name)") }
        return handle
    }

    /// The content piece by piece, empty at the end; a file that ceases to be readable throws.
    package func chunks() throws(UnusableInput) -> () throws -> [UInt8] {
        let handle = try open()
        let name = name
        return {
            do {
                return Array(try handle.read(upToCount: Self.chunkBytes) ?? Data())
            } catch {
                throw UnusableInput("cannot read \(name)")
            }
        }
    }

    package var name: String { path == "-" ? "standard input" : path }
}
