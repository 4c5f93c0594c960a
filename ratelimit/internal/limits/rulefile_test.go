package limits_test

import (
	"context"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
)

func init() {
	limits.Load = func(ctx context.Context, files []limits.File,
		o limits.Options) (*limits.Rules, []limits.Problem, error) {
		theirs := make([]rulefile.File, len(files))
		for i, f := range files {
			theirs[i] = rulefile.File(f)
		}
		return rulefile.Load(ctx, theirs, o)
	}
	limits.LoadResources = rulefile.LoadResources
}
