import Foundation
import Postgres
import TestServers
import Testing

/// Goal: every value arrives in the server unchanged and is read back unchanged, or is refused before it is sent.
/// Method: the server itself judges: each value is sent, compared in SQL with a literal, and read back.
@Suite(.database, .serialized, .timeLimit(.minutes(2))) struct ValueTests {
    /// Sends one value, reads the result of `sql` with `read`.
    private func roundTrip<Row: Sendable>(
        _ value: Value, _ sql: String = "select $1",
        _ read: @escaping @Sendable (borrowing RowReader) throws(PostgresError) -> Row
    ) async throws -> Row {
        try await withDatabase { database in
            let statement = Statement<Value, Row>("test.value", sql, bind: { [$0] }, read: read)
            return try #require(try await database.run(statement, value).first)
        }
    }

    /// The server's own text for the value.
    private func asText(_ value: Value) async throws -> String? {
        try await roundTrip(value, "select $1::text") { row throws(PostgresError) in try row.optionalText(0) }
    }

    @Test func uuid() async throws {
        let id = UUID(uuidString: "01234567-89AB-CDEF-0123-456789ABCDEF")!
        #expect(try await roundTrip(.uuid(id)) { row throws(PostgresError) in try row.uuid(0) } == id)
        #expect(try await roundTrip(.uuid(nil)) { row throws(PostgresError) in try row.optionalUUID(0) } == nil)
        #expect(try await asText(.uuid(id)) == "01234567-89ab-cdef-0123-456789abcdef")
    }

    @Test(arguments: [
        "", "a", "\u{1}", "掉单 补单 🧾", "e\u{301}", "'; drop table x; --", "$1 \\ \" %", "\r\n\t",
    ])
    func text(value: String) async throws {
        let back = try await roundTrip(.text(value)) { row throws(PostgresError) in try row.text(0) }
        #expect(Array(back.utf8) == Array(value.utf8))
    }

    @Test func hugeText() async throws {
        let value = String(repeating: "收据0123456789", count: 1_000_000)  // 16 MB
        let back = try await roundTrip(.text(value)) { row throws(PostgresError) in try row.text(0) }
        #expect(back == value)
    }

    @Test func nullText() async throws {
        #expect(try await roundTrip(.text(nil)) { row throws(PostgresError) in try row.optionalText(0) } == nil)
        await #expect(throws: PostgresError.undecodable(statement: "test.value", column: 0)) {
            try await roundTrip(.text(nil)) { row throws(PostgresError) in try row.text(0) }
        }
    }

    @Test(arguments: [
        Value.text("a\0b"), .text("\0"), .texts(["a", "\0"]), .json("\"\0\""), .jsons(["\0"]),
    ])
    func zeroCharacterIsRefusedBeforeItIsSent(value: Value) async throws {
        await #expect(throws: PostgresError.data(sqlState: "22021", statement: "test.value")) {
            try await roundTrip(value) { _ in }
        }
    }

    @Test(arguments: [0, 1, -1, 255, 256, .max, .min, 1 << 40, -(1 << 33)])
    func int(value: Int) async throws {
        #expect(try await roundTrip(.int(value)) { row throws(PostgresError) in try row.int(0) } == value)
        #expect(try await asText(.int(value)) == String(value))
    }

    @Test(arguments: [0, 1, -1, Int(Int32.max), Int(Int32.min)])
    func int32(value: Int) async throws {
        #expect(try await roundTrip(.int32(value)) { row throws(PostgresError) in try row.int(0) } == value)
        #expect(try await asText(.int32(value)) == String(value))
    }

    @Test func numbersOutOfRangeAreRefused() async throws {
        for value in [Value.int32(1 << 31), .int32(-(1 << 31) - 1), .int32s([1, 1 << 31])] {
            await #expect(throws: PostgresError.data(sqlState: "22003", statement: "test.value")) {
                try await roundTrip(value) { _ in }
            }
        }
    }

    @Test func nullNumbers() async throws {
        #expect(try await roundTrip(.int(nil)) { row throws(PostgresError) in try row.optionalInt(0) } == nil)
        #expect(try await roundTrip(.int32(nil)) { row throws(PostgresError) in try row.optionalInt(0) } == nil)
        #expect(try await roundTrip(.double(nil)) { row throws(PostgresError) in try row.optionalDouble(0) } == nil)
        #expect(try await roundTrip(.bool(nil)) { row throws(PostgresError) in try row.optionalBool(0) } == nil)
        #expect(try await roundTrip(.bytes(nil)) { row throws(PostgresError) in try row.optionalBytes(0) } == nil)
        #expect(try await roundTrip(.date(nil)) { row throws(PostgresError) in try row.optionalDate(0) } == nil)
        #expect(try await roundTrip(.json(nil)) { row throws(PostgresError) in try row.optionalJSON(0) } == nil)
    }

    @Test(arguments: [0, -0.0, 1.5, -1e300, .pi, .leastNonzeroMagnitude, .infinity])
    func double(value: Double) async throws {
        let back = try await roundTrip(.double(value)) { row throws(PostgresError) in try row.double(0) }
        #expect(back.bitPattern == value.bitPattern)
    }

    @Test(arguments: [true, false]) func bool(value: Bool) async throws {
        #expect(try await roundTrip(.bool(value)) { row throws(PostgresError) in try row.bool(0) } == value)
        #expect(try await asText(.bool(value)) == String(value))
    }

    @Test(arguments: [[], [0], [0, 255, 10, 92], Array(0...255)] as [[UInt8]])
    func bytes(value: [UInt8]) async throws {
        #expect(try await roundTrip(.bytes(value)) { row throws(PostgresError) in try row.bytes(0) } == value)
    }

    @Test func json() async throws {
        let back = try await roundTrip(.json(#"{"b":1,"a":[null,"收"]}"#)) { row throws(PostgresError) in
            try row.json(0)
        }
        #expect(back == #"{"a": [null, "收"], "b": 1}"#)  // jsonb orders its keys
        let plain = try await roundTrip(.text(#"{"b":1}"#), "select $1::json") { row throws(PostgresError) in
            try row.json(0)
        }
        #expect(plain == #"{"b":1}"#)
        // The server refuses a text that is not JSON: a data error like any other.
        await #expect(throws: PostgresError.data(sqlState: "22P02", statement: "test.value")) {
            try await roundTrip(.json("{")) { _ in }
        }
        await #expect(throws: PostgresError.data(sqlState: "22P05", statement: "test.value")) {
            try await roundTrip(.json(#""\u0000""#)) { _ in }
        }
    }

    @Test(arguments: [
        ("2026-04-01 12:34:56.789012+00", 796_739_696.789012), ("2000-01-01 00:00:00+00", -31_622_400),
        ("2001-01-01 00:00:00+00", 0), ("1970-01-01 00:00:00.000001+00", -978_307_199.999999),
        ("1999-12-31 23:59:59.999999+00", -31_622_400.000001),
        ("9999-12-31 23:59:59.999999+00", 252_423_993_599.999999),
    ])
    func datesAreExactToTheMicrosecond(literal: String, reference: Double) async throws {
        let date = Date(timeIntervalSinceReferenceDate: reference)
        let isEqual = try await roundTrip(.date(date), "select $1 = '\(literal)'::timestamptz") {
            row throws(PostgresError) in try row.bool(0)
        }
        #expect(isEqual || abs(reference) > 4e9, "beyond the year 2100 a Date has no microseconds")
        let back = try await roundTrip(.text(literal), "select $1::timestamptz") { row throws(PostgresError) in
            try row.date(0)
        }
        #expect(abs(back.timeIntervalSince(date)) < 0.000_1)
        #expect(try await roundTrip(.date(back)) { row throws(PostgresError) in try row.date(0) } == back)
    }

    @Test func everyMicrosecondOfASecondSurvives() async throws {
        let start = Date(timeIntervalSinceReferenceDate: 800_000_000)
        let dates = (0..<1_000).map { _ in start + Double(Int.random(in: 0..<1_000_000)) / 1e6 }
        let back = try await withDatabase { database in
            try await database.run(
                Statement<Void, Date>(
                    "test.dates", "select * from unnest($1::timestamptz[]) with ordinality order by ordinality",
                    bind: { [.dates(dates)] }, read: { row throws(PostgresError) in try row.date(0) }))
        }
        #expect(zip(back, dates).allSatisfy { abs($0.timeIntervalSince($1)) < 0.000_000_5 })
        let again = try await withDatabase { database in
            try await database.run(
                Statement<Void, Date>(
                    "test.dates", "select * from unnest($1::timestamptz[]) with ordinality order by ordinality",
                    bind: { [.dates(back)] }, read: { row throws(PostgresError) in try row.date(0) }))
        }
        #expect(again == back)
    }

    @Test func datesOutOfRangeAreRefused() async throws {
        for date in [
            Date(timeIntervalSinceReferenceDate: .infinity), Date(timeIntervalSinceReferenceDate: .nan),
            Date(timeIntervalSinceReferenceDate: 1e16),
        ] {
            await #expect(throws: PostgresError.data(sqlState: "22008", statement: "test.value")) {
                try await roundTrip(.date(date)) { _ in }
            }
        }
        await #expect(throws: PostgresError.undecodable(statement: "test.value", column: 0)) {
            try await roundTrip(.text("infinity"), "select $1::timestamptz") { row throws(PostgresError) in
                try row.date(0)
            }
        }
    }

    @Test func dayIsItsMidnight() async throws {
        let day = try await roundTrip(.text("2026-03-01"), "select $1::date") { row throws(PostgresError) in
            try row.date(0)
        }
        #expect(day == Date(timeIntervalSince1970: 1_772_323_200))
    }

    /// Every array type, with NULLs, compared by the server with the array it should be.
    @Test(arguments: [
        (
            Value.uuids([UUID(uuidString: "01234567-89AB-CDEF-0123-456789ABCDEF")!]),
            "array['01234567-89ab-cdef-0123-456789abcdef']::uuid[]"
        ),
        (.uuids([]), "'{}'::uuid[]"),
        (.texts(["a", nil, "", "{\"x\",y}", "收"]), #"array['a', null, '', '{"x",y}', '收']"#),
        (.texts([]), "'{}'::text[]"),
        (.ints([1, nil, -1, .max, .min]), "array[1, null, -1, 9223372036854775807, -9223372036854775808]::int8[]"),
        (.ints([]), "'{}'::int8[]"),
        (.int32s([1, nil, -2_147_483_648]), "array[1, null, -2147483648]::int4[]"),
        (.int32s([]), "'{}'::int4[]"),
        (.bools([true, nil, false]), "array[true, null, false]"),
        (.bools([]), "'{}'::bool[]"),
        (.doubles([1.5, nil, -0.25]), "array[1.5, null, -0.25]::float8[]"),
        (.doubles([]), "'{}'::float8[]"),
        (.bytesArray([[0, 255], nil, []]), #"array['\x00ff', null, '\x']::bytea[]"#),
        (.bytesArray([]), "'{}'::bytea[]"),
        (.jsons([#"{"a":1}"#, nil, "null"]), #"array['{"a":1}', null, 'null']::jsonb[]"#),
        (.jsons([]), "'{}'::jsonb[]"),
        (
            .dates([Date(timeIntervalSinceReferenceDate: 0.000001), nil]),
            "array['2001-01-01 00:00:00.000001+00', null]::timestamptz[]"
        ),
        (.dates([]), "'{}'::timestamptz[]"),
    ])
    func arrays(value: Value, literal: String) async throws {
        let isEqual = try await roundTrip(value, "select $1 = \(literal)") { row throws(PostgresError) in
            try row.bool(0)
        }
        #expect(isEqual)
    }

    @Test func arraysComeBack() async throws {
        #expect(
            try await roundTrip(.texts(["a", "", "收"])) { row throws(PostgresError) in try row.texts(0) } == [
                "a", "", "收",
            ])
        #expect(try await roundTrip(.texts([])) { row throws(PostgresError) in try row.texts(0) } == [])
        #expect(try await roundTrip(.ints([1, -5])) { row throws(PostgresError) in try row.ints(0) } == [1, -5])
        #expect(try await roundTrip(.int32s([1, -5])) { row throws(PostgresError) in try row.ints(0) } == [1, -5])
        let ids = [UUID(), UUID()]
        #expect(try await roundTrip(.uuids(ids)) { row throws(PostgresError) in try row.uuids(0) } == ids)
        await #expect(throws: PostgresError.undecodable(statement: "test.value", column: 0)) {
            try await roundTrip(.texts(["a", nil])) { row throws(PostgresError) in try row.texts(0) }
        }
    }

    @Test(arguments: [
        ("1::int2", 1), ("(-2)::int4", -2), ("3::int8", 3), ("4::numeric", 4), ("0::numeric", 0),
        ("-10000::numeric", -10_000), ("123456789012345678::numeric", 123_456_789_012_345_678),
        ("9223372036854775807::numeric", .max), ("-9223372036854775808::numeric", .min),
        ("4294967295::oid", 4_294_967_295),
        ("'77'::xid8", 77), ("20000::numeric", 20_000), ("100000000::numeric", 100_000_000), ("5.00::numeric", 5),
    ])
    func integersOfEveryType(sql: String, expected: Int) async throws {
        let value = try await withDatabase { try await $0.run(oneNumber("select \(sql)")) }
        #expect(value == [expected])
    }

    @Test(arguments: [
        "1.5::numeric", "9223372036854775808::numeric", "-9223372036854775809::numeric", "'NaN'::numeric",
        "1.5::float8", "'1'::text", "null::int4",
    ])
    func whatIsNoIntegerIsUndecodable(sql: String) async throws {
        await #expect(throws: PostgresError.undecodable(statement: "test.number", column: 0)) {
            try await withDatabase { try await $0.run(oneNumber("select \(sql)")) }
        }
    }

    @Test(arguments: [
        ("1.5::float4", 1.5), ("-0.1::float8", -0.1), ("7::int4", 7), ("1.25::numeric", 1.25),
        ("-12345.6789::numeric", -12345.6789),
        ("0.0001::numeric", 0.0001), ("1e20::numeric", 1e20), ("0.00000001::numeric", 1e-8), ("0::numeric", 0),
    ])
    func doublesOfEveryType(sql: String, expected: Double) async throws {
        let value = try await withDatabase {
            try await $0.run(
                Statement<Void, Double>(
                    "test.double", "select \(sql)", read: { row throws(PostgresError) in try row.double(0) }))
        }
        #expect(value == [expected])
    }

    @Test(arguments: ["'a'::text", "'a'::varchar", "'a'::name", "'a'::bpchar", #"'a'::"char""#, "'a'"])
    func textsOfEveryType(sql: String) async throws {
        #expect(try await withDatabase { try await $0.run(oneText("select \(sql)")) } == ["a"])
    }

    @Test func enumsReadAsText() async throws {
        try await withDatabase { database in
            try await database.run(command("create type mood as enum ('open', 'held')"))
            let moods = try await database.run(
                Statement<[String], String>(
                    "test.enum", "select * from unnest($1::text[]::mood[])", bind: { [.texts($0)] },
                    read: { row throws(PostgresError) in try row.text(0) }), ["held", "open"])
            #expect(moods == ["held", "open"])
        }
    }

    @Test func columnsThatAreNotThere() async throws {
        for column in [-1, 1, 99] {
            await #expect(throws: PostgresError.undecodable(statement: "test.column", column: column)) {
                try await withDatabase {
                    try await $0.run(
                        Statement<Void, Int>(
                            "test.column", "select 1", read: { row throws(PostgresError) in try row.int(column) }))
                }
            }
        }
    }

    /// The usual batch: arrays side by side, rows back in order.
    @Test func unnestOfSeveralArrays() async throws {
        struct Line: Sendable, Equatable {
            let id: UUID
            let name: String?
            let amount: Int?
        }
        let lines = (0..<300).map {
            Line(id: UUID(), name: $0 % 3 == 0 ? nil : "n\($0)", amount: $0 % 5 == 0 ? nil : $0)
        }
        let statement = Statement<[Line], Line>(
            "test.unnest",
            """
            select id, name, amount
            from unnest($1::uuid[], $2::text[], $3::int8[]) with ordinality as t(id, name, amount, n) order by n
            """,
            bind: { [.uuids($0.map(\.id)), .texts($0.map(\.name)), .ints($0.map(\.amount))] },
            read: { row throws(PostgresError) in
                Line(id: try row.uuid(0), name: try row.optionalText(1), amount: try row.optionalInt(2))
            })
        let back = try await withDatabase { try await $0.run(statement, lines) }
        #expect(back == lines)
    }
}
