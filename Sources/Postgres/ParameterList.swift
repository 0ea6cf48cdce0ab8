public import Foundation

/// One column of a batch: a name, a type of PostgreSQL, and its value in each row.
public struct Column<Row: Sendable>: Sendable {
    let name: String
    let type: String
    let values: @Sendable ([Row]) -> Value

    public static func uuid(_ name: String, _ value: @escaping @Sendable (Row) -> UUID) -> Column {
        Column(name: name, type: "uuid") { rows in .uuids(rows.map(value)) }
    }

    public static func text(_ name: String, _ value: @escaping @Sendable (Row) -> String?) -> Column {
        Column(name: name, type: "text") { rows in .texts(rows.map(value)) }
    }

    /// int4
    public static func int32(_ name: String, _ value: @escaping @Sendable (Row) -> Int?) -> Column {
        Column(name: name, type: "int4") { rows in .int32s(rows.map(value)) }
    }

    /// int8
    public static func int(_ name: String, _ value: @escaping @Sendable (Row) -> Int?) -> Column {
        Column(name: name, type: "int8") { rows in .ints(rows.map(value)) }
    }

    public static func bool(_ name: String, _ value: @escaping @Sendable (Row) -> Bool?) -> Column {
        Column(name: name, type: "bool") { rows in .bools(rows.map(value)) }
    }

    /// float8
    public static func double(_ name: String, _ value: @escaping @Sendable (Row) -> Double?) -> Column {
        Column(name: name, type: "float8") { rows in .doubles(rows.map(value)) }
    }

    /// jsonb
    public static func json(_ name: String, _ value: @escaping @Sendable (Row) -> String?) -> Column {
        Column(name: name, type: "jsonb") { rows in .jsons(rows.map(value)) }
    }

    /// timestamptz
    public static func date(_ name: String, _ value: @escaping @Sendable (Row) -> Date?) -> Column {
        Column(name: name, type: "timestamptz") { rows in .dates(rows.map(value)) }
    }
}

/// The parameters of one statement, numbered in the order in which they are added, so that text and values cannot count
/// differently.
public struct ParameterList<Input: Sendable>: Sendable {
    private var bindings: [@Sendable (Input) -> [Value]] = []
    private var count = 0

    public init() {}

    /// Adds a single value. Returns its place in the text: `$7`.
    public mutating func add(_ value: @escaping @Sendable (Input) -> Value) -> String {
        count += 1
        bindings.append { [value($0)] }
        return "$\(count)"
    }

    /// Adds the columns of a batch, whose rows `rows` makes of the input.
    public mutating func add<Row>(
        _ columns: [Column<Row>], of rows: @escaping @Sendable (Input) -> [Row]
    ) -> BatchRows {
        let first = count + 1
        count += columns.count
        bindings.append { input in
            let rows = rows(input)
            return columns.map { $0.values(rows) }
        }
        return BatchRows(columns: columns.enumerated().map { ($1.name, "$\(first + $0)::\($1.type)[]") })
    }

    /// The values of all parameters, in the order of their numbers.
    public func values(_ input: Input) -> [Value] { bindings.flatMap { $0(input) } }
}

/// The rows of a batch as a statement's text reads them.
public struct BatchRows: Sendable {
    let columns: [(name: String, parameter: String)]

    /// The rows for a `from` clause: `unnest($1::uuid[], $2::text[]) as i(receipt, app)`.
    ///
    /// - Parameters:
    ///   - names: the columns, each by the name that it was added under. None: all of them.
    ///   - ordinality: the name of a further column, which counts the rows from 1.
    public func rows(as alias: String, _ names: String..., ordinality: String? = nil) -> String {
        let chosen = names.isEmpty ? columns : names.map { name in columns[index(of: name)] }
        let parameters = chosen.map(\.parameter).joined(separator: ", ")
        let aliases = (chosen.map(\.name) + [ordinality].compactMap { $0 }).joined(separator: ", ")
        return "unnest(\(parameters))\(ordinality == nil ? "" : " with ordinality") as \(alias)(\(aliases))"
    }

    private func index(of name: String) -> Int {
        guard let index = columns.firstIndex(where: { $0.name == name }) else {
            preconditionFailure("the batch has no column \(name)")
        }
        return index
    }
}

extension Statement {
    /// A statement whose parameters a list counts: its text names each by what the list returned.
    public init(
        _ name: String, _ sql: String, parameters: ParameterList<Parameters>,
        read: @escaping @Sendable (borrowing RowReader) throws(PostgresError) -> Row
    ) {
        self.init(name, sql, bind: { parameters.values($0) }, read: read)
    }

    /// A statement about a batch, whose columns are all its parameters.
    public init<Element>(
        _ name: String, _ columns: [Column<Element>], sql: (BatchRows) -> String,
        read: @escaping @Sendable (borrowing RowReader) throws(PostgresError) -> Row
    ) where Parameters == [Element] {
        var parameters = ParameterList<[Element]>()
        let rows = parameters.add(columns) { $0 }
        self.init(name, sql(rows), parameters: parameters, read: read)
    }
}

extension Statement where Row == Void {
    /// A statement about a batch, whose columns are all its parameters and whose rows, if it has any, do not matter.
    public init<Element>(
        _ name: String, _ columns: [Column<Element>], sql: (BatchRows) -> String
    ) where Parameters == [Element] {
        self.init(name, columns, sql: sql, read: { _ in })
    }
}
