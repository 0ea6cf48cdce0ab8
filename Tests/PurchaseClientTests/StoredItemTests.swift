import Foundation
import TestRandom
import Testing

@testable import PurchaseClient

/// The bytes of a record: whatever happens to them is seen, and what cannot be read is told, never guessed.
@Suite struct StoredItemTests {
    /// A record with every field set, and one with none.
    static var items: [StoredItem] {
        var full = PurchaseRecord(key: RecordKey("k")!, sequence: 7)
        full.revision = 3
        full.phase = .accepted
        full.user = UserID("用户 é")
        full.details = .details("coins", country: "CHN")
        full.details.item = "item"
        full.order = orderA
        full.accountToken = AccountToken(orderA)
        full.mayHaveLostToken = true
        full.transaction = "2000000123456789"
        full.proof = .signedTransaction("eyJ.eyJ.sig")
        full.receipt = "receipt"
        full.isAdopted = true
        full.failures = 3
        return [
            .record(full), .record(PurchaseRecord(key: RecordKey("k")!, sequence: 1)),
            .installation(token: String(repeating: "x", count: 43)),
        ]
    }

    @Test func isReadAsItWasWritten() throws {
        for item in Self.items { #expect(try StoredItem(decoding: item.encoded) == item) }
        var random = SeededRandom(announcing: "StoredItemTests")
        for _ in 0..<2_000 {
            let item = StoredItem.record(Self.any(&random))
            let read = try StoredItem(decoding: item.encoded)
            #expect(read == item && read.encoded == item.encoded, "seed \(random.seed)")
        }
    }

    /// A write that was cut at any byte, and one that left bytes of something longer behind it.
    @Test func everyTornLengthIsSeen() {
        for item in Self.items {
            let bytes = item.encoded
            for count in 0..<bytes.count {
                #expect(throws: UnreadableItem.torn) { try StoredItem(decoding: Array(bytes.prefix(count))) }
            }
            #expect(throws: UnreadableItem.torn) { try StoredItem(decoding: bytes + [0]) }
            // A file system may give zeros for what it did not write.
            for count in 1..<bytes.count where bytes[(bytes.count - count)...].contains(where: { $0 != 0 }) {
                let zeros = bytes.dropLast(count) + Array(repeating: 0, count: count)
                #expect(throws: UnreadableItem.self) { try StoredItem(decoding: Array(zeros)) }
            }
        }
    }

    @Test func everyFlippedBitIsSeen() {
        for item in Self.items {
            let bytes = item.encoded
            for place in bytes.indices {
                for bit in 0..<8 {
                    var damaged = bytes
                    damaged[place] ^= 1 << bit
                    #expect(throws: UnreadableItem.self, "byte \(place), bit \(bit)") {
                        try StoredItem(decoding: damaged)
                    }
                }
            }
        }
    }

    /// What a later version wrote is whole, and is not for this one.
    @Test func anotherVersionIsNamed() {
        var bytes = Self.items[0].encoded
        bytes[4] = 2
        let sum = Checksum.crc32(Array(bytes[4..<9] + bytes[13...]))
        for index in 0..<4 { bytes[9 + index] = UInt8(truncatingIfNeeded: sum >> UInt32(24 - 8 * index)) }
        #expect(throws: UnreadableItem.version(2)) { try StoredItem(decoding: bytes) }
    }

    /// The checksum is the one that every language has: the check value of CRC-32 of IEEE 802.3.
    @Test func theChecksumIsCRC32() {
        #expect(Checksum.crc32(Array("123456789".utf8)) == 0xCBF4_3926)
    }

    static func any(_ random: inout SeededRandom) -> PurchaseRecord {
        func text(_ random: inout SeededRandom) -> String? { Bool.random(using: &random) ? random.text(0...20) : nil }
        var record = PurchaseRecord(
            key: RecordKey(stored: random.text(1...9)), sequence: .random(in: 0 ... .max, using: &random))
        record.revision = .random(in: 0 ... .max, using: &random)
        record.phase = PurchaseRecord.Phase.allCases.randomElement(using: &random)!
        record.user = text(&random).flatMap { UserID($0) }
        record.details.session = text(&random)
        record.details.product = text(&random)
        record.details.item = text(&random)
        record.details.quantity = Bool.random(using: &random) ? .random(in: 0 ... .max, using: &random) : nil
        record.details.server = text(&random)
        record.details.role = text(&random)
        record.details.time = Bool.random(using: &random) ? .random(in: .min ... .max, using: &random) : nil
        record.details.country = text(&random)
        record.order = text(&random)
        record.accountToken = Bool.random(using: &random) ? AccountToken(random.uuid().uuidString) : nil
        record.mayHaveLostToken = .random(using: &random)
        record.transaction = text(&random)
        record.proof = [.signedTransaction(random.text(0...50)), .appReceipt("AAAA"), .transactionOnly, nil]
            .randomElement(using: &random)!
        record.receipt = text(&random)
        record.isAdopted = .random(using: &random)
        record.failures = .random(in: 0...3, using: &random)
        return record
    }
}
