// Package logging has what the logs of both daemons share: the words of LOG_LEVEL, durations with a unit, and hiding of
// the user information in URLs. Each daemon formats its log lines itself.
package logging

import (
	"log/slog"
	"regexp"
	"strings"
)

// These are log levels in addition to the levels of package slog.
const (
	LevelTrace = slog.Level(-8)
	LevelFatal = slog.Level(12)
	LevelPanic = slog.Level(16)
)

var levels = map[string]slog.Level{
	"panic": LevelPanic, "fatal": LevelFatal, "error": slog.LevelError, "warn": slog.LevelWarn,
	"warning": slog.LevelWarn,
	"info":    slog.LevelInfo, "debug": slog.LevelDebug, "trace": LevelTrace,
}

// Level returns the level for a word of LOG_LEVEL, in any case; info for an unknown word.
func Level(word string) slog.Level { return levels[strings.ToLower(word)] }

// CleanAttr gives durations a unit, which they lack in slog's JSON, and hides credentials in texts and errors.
func CleanAttr(a slog.Attr) slog.Attr {
	switch a.Value.Kind() { // checked before Any, which allocates for most kinds
	case slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case slog.KindString:
		if s := a.Value.String(); strings.Contains(s, "://") {
			a.Value = slog.StringValue(HideCredentials(s))
		}
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(HideCredentials(err.Error()))
		}
	}
	return a
}

var userInfo = regexp.MustCompile(`://[^/\s"]*@`)

// HideCredentials replaces the user name and password of each URL in s by ***.
func HideCredentials(s string) string {
	if !strings.Contains(s, "://") {
		return s
	}
	return userInfo.ReplaceAllLiteralString(s, "://***@")
}
