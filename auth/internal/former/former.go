// Package former reads the database of the service that Gatehouse replaces, supabase/auth. It knows how to recognize
// the schema, its tables and columns, and the formats of refresh tokens, encrypted columns, mailed links and TOTP keys.
//
// It only reads and derives values, and writes to no database. It decides nothing: package takeover decides which rows
// are copied to our tables, and package account decides what a refresh token of the former service may do. In comments,
// the source is the former service's database, and here means ours.
package former
