/// Every statement of the business. One extension per table family; the names stand in pg_stat_statements, logs and
/// metrics alike.
package enum Statements {}
