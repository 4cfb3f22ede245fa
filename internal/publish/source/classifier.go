package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Classifier is an external node classifier. Publish starts it once for each node, and adds its answers to the release.
type Classifier struct {
	Command []string // the name of the node follows as the last argument
	Folder  string   // of the release, for the answers: <node>.yaml
	// Nodes returns the nodes of the folder in root, with their environments.
	Nodes func(root string) (map[string]string, error)
	// Check judges an answer, and returns the environment that it names.
	Check func(answer []byte) (environment string, err error)
}

// The limits of a classifier.
const (
	classifierTime    = 30 * time.Second // of one answer
	classifierWorkers = 4
	maxAnswer         = 1 << 20
)

// classify adds the answers to a copy of the folder. One failed answer fails them all: nothing is published.
func (f *Folder) classify(ctx context.Context, o Options) error {
	c := o.Classifier
	if len(c.Command) == 0 {
		return nil
	}
	nodes, err := c.Nodes(f.Root)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return fmt.Errorf("cannot classify nodes by `%s`: the environment files of the folder name no node\nlist the roles in environments/ENVIRONMENT.yaml", strings.Join(c.Command, " "))
	}
	if err := f.ownCopy(ctx, o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Deadline, &tooLongError{o.Deadline})
	defer cancel()
	answers, elsewhere, err := c.answers(ctx, nodes, o.Progress)
	if err != nil {
		return err
	}
	if len(elsewhere) > 0 {
		f.Notes = append(f.Notes, fmt.Sprintf("the classifier puts %d of %d nodes into another environment (%s): Pulley ignores it, a node is in the environment where it joined",
			len(elsewhere), len(nodes), strings.Join(elsewhere[:min(len(elsewhere), 3)], ", ")))
	}
	return f.addAnswers(c, answers)
}

// answers starts the command for all nodes. elsewhere lists those that it puts into another environment.
func (c Classifier) answers(ctx context.Context, nodes map[string]string, progress func(string)) (answers map[string][]byte, elsewhere []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers = map[string][]byte{}
	names := make(chan string)
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range classifierWorkers {
		workers.Go(func() {
			for name := range names {
				answer, environment, failed := c.ask(ctx, name)
				mu.Lock()
				if failed != nil && err == nil { // the others were canceled
					err = failed
					cancel()
				}
				answers[name] = answer
				if environment != "" && environment != nodes[name] {
					elsewhere = append(elsewhere, name+": "+environment)
				}
				progress(fmt.Sprintf("classifying nodes: %d of %d", len(answers), len(nodes)))
				mu.Unlock()
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		select {
		case names <- name:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(names)
	workers.Wait()
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("cannot classify nodes by `%s`: %w", strings.Join(c.Command, " "), context.Cause(ctx))
	}
	slices.Sort(elsewhere)
	return answers, elsewhere, err
}

// ask returns the answer for one node.
func (c Classifier) ask(ctx context.Context, node string) (answer []byte, environment string, err error) {
	one := command{args: append(slices.Clone(c.Command), node), max: maxAnswer}
	if answer, err = one.run(ctx, classifierTime); err == nil {
		environment, err = c.Check(answer)
	}
	if err != nil {
		err = fmt.Errorf("cannot classify %s: %w\nrun `%s` to see its answer; nothing was published", node, err, strings.Join(one.args, " "))
	}
	return answer, environment, err
}

// addAnswers writes the answers into the copy.
func (f *Folder) addAnswers(c Classifier, answers map[string][]byte) (err error) {
	root, err := os.OpenRoot(f.Root)
	if err != nil {
		return fmt.Errorf("cannot add the answers of the classifier: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := makeFolders(root, c.Folder); err != nil {
		return err
	}
	for name, answer := range answers {
		to := filepath.Join(c.Folder, name+".yaml")
		file, err := root.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot add the answer of the classifier for %s: the folder contains %s\nremove the file, or publish without the classifier", name, to)
		}
		if err == nil {
			_, err = file.Write(answer)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			return fmt.Errorf("cannot add the answer of the classifier for %s: %w", name, err)
		}
	}
	f.Overlays = append(f.Overlays, Overlaid{Folder: c.Folder, Source: "classifier " + c.Command[0], Files: len(answers)})
	return nil
}
