"""nbgrader's settings for this course. `bigtrain course build` puts them here once: change them as
you like."""

from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import ClearSolutions


class Starter(ClearSolutions):
    """Gives a student the start of an answer, where nbgrader alone would leave an error."""

    def preprocess_cell(self, cell, resources, index):
        cell.source = cell.metadata.get("bigtrain", {}).pop("start", cell.source)
        return cell, resources


c = get_config()  # noqa: F821, nbgrader hands it in
c.CourseDirectory.course_id = "bigtrain"
c.GenerateAssignment.preprocessors = [
    Starter if each is ClearSolutions else each
    for each in GenerateAssignment.preprocessors.default()
]
