/// One thing that a store keeps, and its bytes (<doc:TheStore>).
public enum StoredItem: Sendable, Hashable {
    /// A record.
    case record(PurchaseRecord)
    /// The token that the server issued for this installation.
    case installation(token: String)

    /// The version that is written.
    static let version: UInt8 = 1
    static let magic = Array("MGPJ".utf8)
    /// Magic, version, length of the body, checksum.
    static let headerCount = 4 + 1 + 4 + 4

    /// The item as a store writes it.
    public var encoded: [UInt8] {
        var fields = FieldWriter()
        switch self {
        case .record(let record): fields.write(record)
        case .installation(let token): fields.write(.installationToken, token)
        }
        let body = fields.bytes
        let covered = [Self.version] + UInt32(body.count).bigEndianBytes + body
        return Self.magic + covered.prefix(5) + Checksum.crc32(covered).bigEndianBytes + body
    }

    /// Reads what a store wrote.
    ///
    /// - Throws: why it cannot be read. The bytes must be kept: a later version of the app, or a person, may read them.
    public init(decoding bytes: [UInt8]) throws(UnreadableItem) {
        guard bytes.count >= Self.headerCount else { throw .torn }
        guard bytes.starts(with: Self.magic) else { throw .malformed }
        let body = Array(bytes[Self.headerCount...])
        guard UInt32(bigEndianBytes: bytes[5..<9]) == UInt32(body.count) else { throw .torn }
        guard UInt32(bigEndianBytes: bytes[9..<13]) == Checksum.crc32(Array(bytes[4..<9]) + body) else {
            throw .checksum
        }
        guard bytes[4] == Self.version else { throw .version(bytes[4]) }
        var fields = try FieldReader(body)
        if let token = try fields.text(.installationToken) {
            self = .installation(token: token)
        } else {
            self = .record(try fields.record())
        }
        guard fields.isEmpty else { throw .malformed }
    }
}

/// Why the bytes of an item cannot be read.
public enum UnreadableItem: Error, Sendable, Hashable {
    /// Bytes are missing, or there are too many.
    case torn
    /// Bytes are not what was written.
    case checksum
    /// Another version wrote it.
    case version(UInt8)
    /// It is no item, or its fields make no sense.
    case malformed
}

/// CRC-32 of IEEE 802.3, as zlib and PNG have it: it sees each flipped bit, and each burst of up to 32 bits.
enum Checksum {
    static let table: [UInt32] = (0..<256).map { index in
        (0..<8).reduce(UInt32(index)) { value, _ in value & 1 == 1 ? 0xEDB8_8320 ^ (value >> 1) : value >> 1 }
    }

    static func crc32(_ bytes: [UInt8]) -> UInt32 {
        ~bytes.reduce(~0) { value, byte in table[Int(UInt8(truncatingIfNeeded: value) ^ byte)] ^ (value >> 8) }
    }
}

/// The fields of a body: tag, length, bytes. The tags ascend; a field that is not set is not written.
enum FieldTag: UInt8 {
    case key = 1
    case sequence, revision, phase, user, session, product, item, quantity, server, role, time, country, order
    case accountToken, mayHaveLostToken, transaction, signedTransaction, appReceipt, transactionOnly, receipt
    case isAdopted, failures
    case installationToken = 100
}

private struct FieldWriter {
    var bytes: [UInt8] = []

    mutating func write(_ tag: FieldTag, _ value: [UInt8]) {
        bytes.append(tag.rawValue)
        bytes += UInt32(value.count).bigEndianBytes
        bytes += value
    }

    mutating func write(_ tag: FieldTag, _ text: String?) {
        if let text { write(tag, Array(text.utf8)) }
    }

    mutating func write(_ tag: FieldTag, _ number: (some FixedWidthInteger)?) {
        if let number { write(tag, number.bigEndianBytes) }
    }

    mutating func write(_ tag: FieldTag, _ flag: Bool) {
        if flag { write(tag, [] as [UInt8]) }
    }

    mutating func write(_ record: PurchaseRecord) {
        write(.key, record.key.text)
        write(.sequence, record.sequence)
        write(.revision, record.revision)
        write(.phase, record.phase.rawValue)
        write(.user, record.user?.text)
        write(.session, record.details.session)
        write(.product, record.details.product)
        write(.item, record.details.item)
        write(.quantity, record.details.quantity)
        write(.server, record.details.server)
        write(.role, record.details.role)
        write(.time, record.details.time)
        write(.country, record.details.country)
        write(.order, record.order)
        write(.accountToken, record.accountToken?.text)
        write(.mayHaveLostToken, record.mayHaveLostToken)
        write(.transaction, record.transaction)
        switch record.proof {
        case .signedTransaction(let text): write(.signedTransaction, text)
        case .appReceipt(let text): write(.appReceipt, text)
        case .transactionOnly: write(.transactionOnly, true)
        case nil: break
        }
        write(.receipt, record.receipt)
        write(.isAdopted, record.isAdopted)
        if record.failures > 0 { write(.failures, record.failures) }
    }
}

private struct FieldReader {
    private var fields: [FieldTag: ArraySlice<UInt8>] = [:]

    init(_ bytes: [UInt8]) throws(UnreadableItem) {
        var rest = bytes[...]
        var last: UInt8 = 0
        while let number = rest.popFirst() {
            guard number > last, let tag = FieldTag(rawValue: number), rest.count >= 4 else { throw .malformed }
            last = number
            let count = Int(UInt32(bigEndianBytes: rest.prefix(4)))
            rest = rest.dropFirst(4)
            guard rest.count >= count else { throw .malformed }
            fields[tag] = rest.prefix(count)
            rest = rest.dropFirst(count)
        }
    }

    /// Whether every field was read.
    var isEmpty: Bool { fields.isEmpty }

    mutating func text(_ tag: FieldTag) throws(UnreadableItem) -> String? {
        guard let bytes = fields.removeValue(forKey: tag) else { return nil }
        let text = String(decoding: bytes, as: UTF8.self)
        guard text.utf8.elementsEqual(bytes) else { throw .malformed }
        return text
    }

    mutating func number<Number: FixedWidthInteger>(_ tag: FieldTag) throws(UnreadableItem) -> Number? {
        guard let bytes = fields.removeValue(forKey: tag) else { return nil }
        guard bytes.count == Number.bitWidth / 8 else { throw .malformed }
        return Number(bigEndianBytes: bytes)
    }

    mutating func flag(_ tag: FieldTag) throws(UnreadableItem) -> Bool {
        guard let bytes = fields.removeValue(forKey: tag) else { return false }
        guard bytes.isEmpty else { throw .malformed }
        return true
    }

    mutating func record() throws(UnreadableItem) -> PurchaseRecord {
        guard let key = try text(.key), let sequence: UInt64 = try number(.sequence),
            let revision: UInt32 = try number(.revision),
            let phase = try text(.phase).flatMap(PurchaseRecord.Phase.init(rawValue:))
        else { throw .malformed }
        var record = PurchaseRecord(key: RecordKey(stored: key), sequence: sequence)
        record.revision = revision
        record.phase = phase
        if let user = try text(.user) {
            guard let user = UserID(user) else { throw .malformed }
            record.user = user
        }
        record.details = try details()
        record.order = try text(.order)
        if let token = try text(.accountToken) {
            guard let token = AccountToken(token) else { throw .malformed }
            record.accountToken = token
        }
        record.mayHaveLostToken = try flag(.mayHaveLostToken)
        record.transaction = try text(.transaction)
        record.proof = try proof()
        record.receipt = try text(.receipt)
        record.isAdopted = try flag(.isAdopted)
        record.failures = try number(.failures) ?? 0
        return record
    }

    private mutating func details() throws(UnreadableItem) -> PurchaseDetails {
        var details = PurchaseDetails()
        details.session = try text(.session)
        details.product = try text(.product)
        details.item = try text(.item)
        details.quantity = try number(.quantity)
        details.server = try text(.server)
        details.role = try text(.role)
        details.time = try number(.time)
        details.country = try text(.country)
        return details
    }

    private mutating func proof() throws(UnreadableItem) -> PurchaseProof? {
        if let text = try text(.signedTransaction) { return .signedTransaction(text) }
        if let text = try text(.appReceipt) { return .appReceipt(text) }
        return try flag(.transactionOnly) ? .transactionOnly : nil
    }
}

extension FixedWidthInteger {
    /// The bytes, the highest first.
    fileprivate var bigEndianBytes: [UInt8] {
        stride(from: Self.bitWidth - 8, through: 0, by: -8).map { UInt8(truncatingIfNeeded: self >> Self($0)) }
    }

    /// The number of as many bytes as it has.
    fileprivate init(bigEndianBytes bytes: ArraySlice<UInt8>) {
        self = bytes.reduce(0) { $0 << 8 | Self($1) }
    }
}
