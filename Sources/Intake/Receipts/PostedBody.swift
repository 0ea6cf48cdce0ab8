import Encoding
import Service

/// The bytes of a posted body, read as the JSON that its sender meant.
///
/// A body that RFC 8259 takes is read as it is, and nothing here costs it more than a look at its first byte. Of any
/// other body these are mended, once each and in linear time: control characters inside strings, as hand-made JSON has
/// them around base64 in lines; a text of an encoding with one byte for a character; JSON inside a JSON string, and a
/// list of one, twice at most.
enum PostedBody {
    private static let layersMax = 2
    private static let beginnings = [UInt8(ascii: "{"), UInt8(ascii: "["), UInt8(ascii: "\"")]

    /// The object of a receipt.
    ///
    /// - Throws: 400 for what is no JSON, and for another value than an object.
    static func object(_ body: [UInt8]) throws(Problem) -> [JSONValue.Member] {
        var value = try mending(body) { (text) throws(JSONError) in try JSONValue(parsing: text) }
        for _ in 0..<layersMax {
            switch value {
            case .string(let inner):
                guard let first = inner.utf8.first(where: { $0 > 0x20 }), beginnings.contains(first),
                    let unwrapped = try? JSONValue(parsing: Array(inner.utf8))
                else { throw .notAnObject }
                value = unwrapped
            case .array(let elements):
                guard elements.count == 1 else { throw .notAnObject }
                value = elements[0]
            default: break
            }
        }
        guard case .object(let members) = value else { throw .notAnObject }
        return members
    }

    /// Reads the body, and once more as mended if it is no JSON.
    ///
    /// - Throws: 400 as for the body as it came.
    static func mending<Value>(
        _ body: [UInt8], _ read: ([UInt8]) throws(JSONError) -> Value
    ) throws(Problem) -> Value {
        do throws(JSONError) {
            return try read(body)
        } catch {
            guard error.kind == .syntax, let mended = Self.mended(body), let value = try? read(mended) else {
                throw Problem(error)
            }
            return value
        }
    }

    /// The body with escapes in the place of control characters inside its strings, and in UTF-8. Nil where nothing is
    /// to be mended so.
    private static func mended(_ body: [UInt8]) -> [UInt8]? {
        // Each byte of such an encoding is a character of its own, so two users never become one.
        let isUTF8 = String(validating: body, as: UTF8.self) != nil
        var text: [UInt8] = []
        text.reserveCapacity(body.count + body.count / 32)
        var (isInString, isEscaped, isChanged) = (false, false, !isUTF8)
        for byte in body {
            switch byte {
            case 0x09 where isInString, 0x0A where isInString, 0x0D where isInString:
                // A backslash before a line break is a continued line.
                if isEscaped { text.removeLast() }
                isEscaped = false
                isChanged = true
                text += [UInt8(ascii: "\\"), byte == 0x09 ? UInt8(ascii: "t") : UInt8(ascii: "n")]
                continue
            case 0x80... where !isUTF8: text += [0xC0 | byte >> 6, 0x80 | byte & 0x3F]
            default: text.append(byte)
            }
            if isEscaped {
                isEscaped = false
            } else if byte == UInt8(ascii: "\\") {
                isEscaped = isInString
            } else if byte == UInt8(ascii: "\"") {
                isInString.toggle()
            }
        }
        return isChanged ? text : nil
    }
}

extension Problem {
    fileprivate static let notAnObject = Problem.malformed(.notJSON, "the body must be a JSON object", field: nil)
}
