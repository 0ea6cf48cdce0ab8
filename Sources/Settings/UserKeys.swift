import Crypto
import Encoding
import Foundation
package import Purchases

/// The keys of a protected database (`users.protect`). They turn a user's id into the key that stands in all tables,
/// and they seal the id itself.
///
/// The file holds one secret per line, 32 bytes of text or more each (`openssl rand -base64 32`). The first line names
/// the users, and must never change. The last line seals. Earlier lines still open what they sealed, so an operator
/// replaces a sealing key by adding a line. All keys are derived by HKDF-SHA256 (RFC 5869), each for one purpose.
package struct UserKeys: Sendable {
    package static let secretBytesMin = 32

    private let naming: SymmetricKey
    private let sealing: [String: SymmetricKey]
    /// The key that seals now.
    package let sealingID: String
    /// Tells two naming keys apart, and says nothing else about them.
    package let fingerprint: String

    /// A user's id in the form that the table `users` stores.
    package struct Sealed: Sendable, Equatable {
        package let bytes: [UInt8]
        package let keyID: String

        package init(bytes: [UInt8], keyID: String) {
            self.bytes = bytes
            self.keyID = keyID
        }
    }

    /// Nil for a file without a secret, or with one that is too short.
    package init?(file text: String) {
        let secrets = text.split(whereSeparator: \.isNewline).map { $0.trimmingCharacters(in: .whitespaces) }
            .filter { !$0.isEmpty }
        guard let first = secrets.first, let last = secrets.last,
            secrets.allSatisfy({ $0.utf8.count >= Self.secretBytesMin })
        else { return nil }
        naming = Self.derive(first, "name")
        fingerprint = Self.derive(first, "fingerprint", bytes: 16).hexadecimal
        sealingID = Self.sealingID(last)
        sealing = Dictionary(secrets.map { (Self.sealingID($0), Self.derive($0, "seal")) }) { first, _ in first }
    }

    /// `user_` and 43 letters: HMAC-SHA256 over app and id, so that nobody without the key finds an id by trying, and
    /// the same player in two apps is two users.
    package func key(of userID: String, app: String) -> String {
        let code = HMAC<SHA256>.authenticationCode(for: Self.parts(app, userID), using: naming)
        return "user_" + Base64URL.encode(Array(code))
    }

    package func seal(_ userID: String, key: String, app: String) -> Sealed {
        guard let secret = sealing[sealingID],
            // This fails only for a nonce or key of a wrong size. Random nonces of 96 bits: good for 2^32 users (NIST
            // SP 800-38D, 8.3).
            let box = try? AES.GCM.seal(Data(userID.utf8), using: secret, authenticating: Self.parts(app, key)),
            let bytes = box.combined
        else { preconditionFailure("a derived key has the right size") }
        return Sealed(bytes: Array(bytes), keyID: sealingID)
    }

    /// Nil where the key is not in the file any more, or the row is not what was sealed for this user.
    package func open(_ sealed: Sealed, key: String, app: String) -> String? {
        guard let secret = sealing[sealed.keyID], let box = try? AES.GCM.SealedBox(combined: sealed.bytes),
            let bytes = try? AES.GCM.open(box, using: secret, authenticating: Self.parts(app, key))
        else { return nil }
        return String(decoding: bytes, as: UTF8.self)
    }

    /// The submission in the form that may be stored: with the key instead of the id.
    package func protecting(_ submission: Submission) -> Submission {
        var declared = submission.declared
        if let item = declared?.item, item.isSameText(as: submission.userID) {
            declared?.item = key(of: item, app: submission.appID)
        }
        if let uid = declared?.uid { declared?.uid = key(of: uid, app: submission.appID) }
        var protected = Submission(
            appID: submission.appID, userID: submission.userID.map { key(of: $0, app: submission.appID) },
            orderID: protecting(message: submission.orderID, of: submission.userID, app: submission.appID),
            proof: submission.proof, transactionID: submission.transactionID,
            originalTransactionID: submission.originalTransactionID, isVouched: submission.isVouched,
            details: protecting(submission.details, of: submission.userID, app: submission.appID),
            target: submission.target.map { protecting($0, of: submission.userID, app: submission.appID) },
            declared: declared)
        protected.installationTokenSHA256 = submission.installationTokenSHA256
        protected.shownTransactionID = submission.shownTransactionID
        protected.shownProductID = submission.shownProductID
        protected.showsRecordOfUser = submission.showsRecordOfUser
        return protected
    }

    /// A JSON object in the form that may be stored. The key replaces the id where the id stands as a value, at any
    /// depth, and replaces the `uid` of the old clients' table (S0-1). Text that only contains an id is not found.
    package func protecting(_ json: String, of userID: String?, app: String) -> String {
        guard !json.isSameText(as: "{}"), let value = try? JSONValue(parsing: Array(json.utf8)) else { return json }
        return replaced(value, userID, app, isRoot: true).text
    }

    /// A text that a person or an app wrote, an order number too, with the key instead of the id wherever the id
    /// stands. An id of fewer than four bytes would be found in any text, and is left.
    package func protecting(message: String?, of userID: String?, app: String) -> String? {
        guard let message, let userID, userID.utf8.count >= 4 else { return message }
        return message.replacing(bytesOf: userID, with: key(of: userID, app: app))
    }

    /// A key for a text that only has to be recognised again: an idempotency key, which may be made of the user's id.
    package func digest(_ text: String, app: String) -> String { key(of: "text " + text, app: app) }

    private func replaced(_ value: JSONValue, _ userID: String?, _ app: String, isRoot: Bool = false) -> JSONValue {
        switch value {
        case .object(let members):
            .object(
                members.map { member in
                    if isRoot, member.key.isSameText(as: "uid"), let uid = member.value.plainText, !uid.isEmpty {
                        return .init(member.key, .string(key(of: uid, app: app)))
                    }
                    return .init(member.key, replaced(member.value, userID, app))
                })
        case .array(let values): .array(values.map { replaced($0, userID, app) })
        case .string, .number:
            if let userID, userID.isSameText(as: value.plainText) { .string(key(of: userID, app: app)) } else { value }
        case .null, .bool: value
        }
    }

    /// The two texts, each with its length before it, so that no two pairs give the same bytes.
    private static func parts(_ app: String, _ text: String) -> Data {
        var data = Data()
        for part in [app, text] {
            withUnsafeBytes(of: UInt64(part.utf8.count).bigEndian) { data.append(contentsOf: $0) }
            data.append(contentsOf: part.utf8)
        }
        return data
    }

    private static func derive(_ secret: String, _ purpose: String, bytes: Int = 32) -> SymmetricKey {
        HKDF<SHA256>.deriveKey(
            inputKeyMaterial: SymmetricKey(data: Data(secret.utf8)), info: Data("makegood users \(purpose) 1".utf8),
            outputByteCount: bytes)
    }

    private static func sealingID(_ secret: String) -> String { derive(secret, "seal id", bytes: 8).hexadecimal }
}

extension UserKeys: CustomStringConvertible, CustomReflectable {
    /// Without the keys.
    package var description: String { "users protected by \(fingerprint), sealed by \(sealingID)" }
    package var customMirror: Mirror { Mirror(self, children: ["description": description]) }
}

extension SymmetricKey {
    fileprivate var hexadecimal: String {
        withUnsafeBytes { $0.hexadecimal }
    }
}

extension String {
    /// The text with `other` wherever the bytes of `word` stand. It takes one pass: String's own search takes quadratic
    /// time for marks that combine with one character.
    fileprivate func replacing(bytesOf word: String, with other: String) -> String {
        let (text, word) = (Array(utf8), Array(word.utf8))
        var replaced: [UInt8] = []
        replaced.reserveCapacity(text.count)
        var position = 0
        while position < text.count {
            let isWord =
                text.count - position >= word.count
                && text.withUnsafeBytes { memcmp($0.baseAddress! + position, word, word.count) } == 0
            if isWord { replaced += other.utf8 } else { replaced.append(text[position]) }
            position += isWord ? word.count : 1
        }
        return String(decoding: replaced, as: UTF8.self)
    }
}

extension JSONValue {
    /// A string's or a number's text.
    fileprivate var plainText: String? {
        switch self {
        case .string(let text), .number(let text): text
        default: nil
        }
    }
}

/// RFC 4648, section 5, without padding.
package enum Base64URL {
    package static func encode(_ bytes: [UInt8]) -> String {
        Data(bytes).base64EncodedString().replacing("+", with: "-").replacing("/", with: "_").replacing("=", with: "")
    }
}
