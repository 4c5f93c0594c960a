package limits

import "context"

// Most tests write their rules as files, which package rulefile reads. It imports this package, so that the external
// half of the test binary, rulefile_test.go, has to put it in.
var (
	Load          func(context.Context, []File, Options) (*Rules, []Problem, error)
	LoadResources func(context.Context, [][]byte, Options) (*Rules, []Problem, error)
)

// File is rulefile's.
type File struct {
	Name string
	Text []byte
}

// What rulefile has, and these tests go by.
const (
	MaxFileBytes   = 64 << 20
	maxDepth       = 1000
	fieldQuotaMode = 7
	fieldMetadata  = 8
)
