// Package former knows the service that this one replaces: how its schema is recognised, which tables and columns it
// has, and the formats of its refresh tokens, encrypted columns, mailed links and TOTP keys.
//
// It reads and derives. It writes to no database, neither there nor here, and decides nothing: what is carried over is
// the takeover's business, what a former refresh token may do the accounts'.
package former
