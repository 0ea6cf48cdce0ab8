/// Every statement of the business, in one extension per table family. The statements' names stand in
/// pg_stat_statements, logs and metrics alike.
package enum Statements {}
