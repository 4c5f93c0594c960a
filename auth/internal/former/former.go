// Package former knows the service that this one replaces: how to recognise its schema, the tables and columns, and the
// formats of refresh tokens, encrypted columns, mailed links and TOTP keys.
//
// It only reads and derives, writes to no database, and decides nothing: package takeover decides what is carried over,
// package account what a former refresh token may do. In comments, the source is the replaced service's database, and
// here means ours.
package former
