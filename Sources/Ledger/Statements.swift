import Postgres

/// Every statement of the business, in one extension per table family. The statements' names stand in
/// pg_stat_statements, logs and metrics alike.
package enum Statements {}

extension DatabaseTransaction {
    /// Adds a statement about a batch to the round, if there is anything for it.
    @discardableResult
    func queue<Element, Row>(forAny elements: [Element], _ statement: Statement<[Element], Row>) -> Reply<Row>? {
        elements.isEmpty ? nil : queue(statement, elements)
    }
}
